"""Arrays of inputs and results stay what they were for as long as a model keeps them; forks and circles harm nobody."""

from __future__ import annotations

import os
import sys

import pytest
from serving.contract import run, serving
from support.interpreters import each_interpreter, numpy_environment

pytestmark = pytest.mark.skipif(bool(os.environ.get("NAIAD_REFERENCE")), reason="the reference promises none of this")

KEEP = """
kept = vars(model).setdefault("kept", [])
kept.append(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
return [answer(len(kept))]
"""
JUDGE = """
kept, model.kept = model.kept, []
return [answer([len(kept), all((array == number).all() for number, array in enumerate(kept))])]
"""
RAISE = """
def fail():
    mine = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    try:
        raise ValueError(mine.sum())
    except ValueError as error:
        circle = error  # and the frame that holds it is held by its traceback
        raise
fail()
"""
MANY = 40

SCENARIOS = {
    "a command line is looked for": """
        import argparse, sys
        return [answer((sys.argv, vars(argparse.ArgumentParser().parse_args())) == ([""], {}))]
        """,
    "results of calls are kept": """
        def ask(number):
            array = np.full(30000, number, np.float32)
            return to("identity", pb_utils.Tensor("IN", array)).exec().output_tensors()[0].as_numpy()
        kept = [ask(number) for number in range(40)]
        return [answer(all((array == number).all() for number, array in enumerate(kept)))]
        """,
    "inputs are kept": f"""
        for number in range({MANY}):
            values = pb_utils.Tensor("IN", np.full(30000, number, np.float32))
            assert value_of(to("runs_coroutine", code({KEEP!r}), values).exec()) == {{"OUT": [str(number + 1)]}}
        return [answer(value_of(to("runs_coroutine", code({JUDGE!r})).exec()) == {{"OUT": ["[{MANY}, true]"]}})]
        """,
    "inputs of few bytes are kept, and are the model's own": f"""
        for number in range({MANY}):
            values = pb_utils.Tensor("IN", np.full(3, number, np.float32))
            assert value_of(to("runs_coroutine", code({KEEP!r}), values).exec()) == {{"OUT": [str(number + 1)]}}
        write = 'pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[:] = 99'
        write += "\\nreturn [answer(0)]"
        assert value_of(to("runs_coroutine", code(write), values).exec()) == {{"OUT": ["0"]}}
        mine = to("identity", values).exec().output_tensors()[0].as_numpy()
        mine += 1
        assert values.as_numpy().tolist() == [{MANY} - 1] * 3 and mine.tolist() == [{MANY}] * 3
        return [answer(value_of(to("runs_coroutine", code({JUDGE!r})).exec()) == {{"OUT": ["[{MANY}, true]"]}})]
        """,
    "inputs are kept by exceptions in circles": f"""
        import gc
        values = pb_utils.Tensor("IN", np.ones(30000, np.float32))
        for _ in range(150):
            assert "ValueError: 30000.0" in value_of(to("runs_coroutine", code({RAISE!r}), values).exec())["error"]
        return [answer(True)]
        """,
    "allocated inputs of calls": """
        tensor = pb_utils.Tensor.allocate("IN", [50000], np.float32)
        array = tensor.as_numpy()
        array[:] = 7
        request = to("identity", tensor)
        seen = []
        for _ in range(3):
            [result] = request.exec().output_tensors()
            seen.append(bool((result.as_numpy() == array).all()))
            array += 1
        unsent = [pb_utils.Tensor.allocate("IN", [50000], np.float32) for _ in range(50)]
        unsent[3].as_numpy()[:] = 1
        del unsent
        empty = to("identity", pb_utils.Tensor.allocate("IN", [0], np.float32)).exec().output_tensors()[0]
        return [answer(seen == [True] * 3 and empty.shape() == [0])]
        """,
    "allocated outputs": """
        inner = '''
        tensor = pb_utils.Tensor.allocate("VALUES", [40000], np.float32)
        tensor.as_numpy()[:] = %d
        return [pb_utils.InferenceResponse([tensor, pb_utils.Tensor("OUT", np.array(["x"], np.object_))])]
        '''
        good = []
        for number in range(30):
            outputs = to("runs_coroutine", code(inner % number), outputs=[]).exec().output_tensors()
            [values] = [output.as_numpy() for output in outputs if output.name() == "VALUES"]
            good.append(bool((values == number).all()) and len(outputs) == 2)
        return [answer(all(good))]
        """,
    "a fork may call, and not load models": """
        import os
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if value_of(to("identity", tensor(1)).exec()) == {"OUT": [1.0]}:
                    status = 2
                pb_utils.is_model_ready("identity")
            except Exception:
                status += 5
            os._exit(status)
        status = os.waitpid(child, 0)[1] >> 8
        return [answer(status == 7 and value_of(to("identity", tensor(2)).exec()) == {"OUT": [2.0]})]
        """,
    "a fork returns from execute": """
        import os
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return [answer(child > 0)]
        """,
    "a pool of processes": """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return [answer(pool.map(abs, range(-4, 0)) == [4, 3, 2, 1])]
        """,
    "a program that gets every descriptor that may be inherited": """
        import subprocess
        listed = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, stdout=subprocess.PIPE).stdout
        return [answer(b"pipe:" in listed and b"socket:" not in listed)]
        """,
    "calls from everywhere": """
        from concurrent.futures import ThreadPoolExecutor
        async def gathered():
            calls = [to("identity", tensor(n)).async_exec() for n in range(20)]
            return [value_of(response)["OUT"][0] for response in await asyncio.gather(*calls)]
        one = lambda n: value_of(to("identity", tensor(n)).exec())["OUT"][0]
        with ThreadPoolExecutor(8) as pool:
            loops = [pool.submit(asyncio.run, gathered()) for _ in range(4)]
            threads = list(pool.map(one, range(50)))
            streamed = list(to("repeats", tensor(300, 0)).exec(decoupled=True))
            return [answer(threads == list(range(50)) and all(loop.result() == list(range(20)) for loop in loops)
                           and len(streamed) == 301)]
        """,
}
MODELS = ("runs_code", "runs_coroutine", "identity", "repeats")


@pytest.fixture(scope="module")
def server(work):
    with serving(work, *MODELS) as running:
        yield running


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_object_or_thread_of_a_model_ends_its_guest(server, name):
    before = [process.pid for process in server.children()]
    assert run(server, "runs_code", SCENARIOS[name]) is True
    assert [process.pid for process in server.children()] == before


def test_a_call_from_a_process_of_a_pool_fails_with_a_sentence_and_its_parent_serves_on(server):
    """The exception of the child is raised again in its parent, by the pool."""
    before = [process.pid for process in server.children()]
    error = run(
        server,
        "runs_code",
        """
        import multiprocessing
        here = f"__import__('sys').modules[{to.__module__!r}].pb_utils"
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.apply(eval, (f"{here}.is_model_ready('identity')",))
        """,
    )
    text = "HostGoneError: this process was forked from the model's and can only call other models: respond, load "
    assert text in error
    assert run(server, "runs_code", "return [answer(value_of(to('identity', tensor(2)).exec()))]") == {"OUT": [2.0]}
    assert [process.pid for process in server.children()] == before


@pytest.mark.parametrize(("version", "python"), each_interpreter())
def test_models_of_every_interpreter_call_those_of_another(version, python, tmp_path, tmp_path_factory):
    folder = numpy_environment(tmp_path_factory, version, python)
    config = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{folder}" }} }}\n'
    with serving(tmp_path, *MODELS, runs_code=config) as server:
        code = "import sys\nreturn [answer(list(sys.version_info[:2]))]"
        assert run(server, "runs_code", code) == list(version)
        assert run(server, "runs_coroutine", code) == list(sys.version_info[:2])
        assert {name: run(server, "runs_code", code) for name, code in SCENARIOS.items()} == dict.fromkeys(
            SCENARIOS, True
        )
