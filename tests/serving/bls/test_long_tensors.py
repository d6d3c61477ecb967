"""Long tensors from model to model: through bridges, that is memory which their two models alone map."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from serving.ensembles.ensembles import write_ensemble
from serving.written import evaluate, send_code, write_model
from support.client_inputs import input_of
from support.server import ServerProcess
from support.waiting import until

DOUBLES = """
def initialize(self, args):
    self.kept = []

def respond(self, request):
    array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    if array.size and array.flat[0] < 0:
        os._exit(7)
    array *= 2  # it is the model's own
    self.kept.append((array, array.flat[0] if array.size else 0))
    if not all((kept == value).all() for kept, value in self.kept):
        raise ValueError("an input that was kept is another's now")
    del self.kept[:-3]
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
"""
"""Doubles in place, keeps what it got and checks that this stays; exits at a negative number."""
REPEATS = """
def execute(self, requests):
    for request in requests:
        array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        sender = request.get_response_sender()
        for number in range(5):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + number)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Whether its input is in a bridge."""
PORTS = """
input [{ name: "IN" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }]
"""
DEFINITIONS = """
import asyncio, concurrent.futures, random
kept = []
def request(value, size, model="doubles"):
    shape = (1, size) if model == "batched" else size
    inputs = [pb_utils.Tensor("IN", np.full(shape, value, np.float32))]
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=inputs)
def result(response):
    if response.has_error():
        return response.error().message()
    tensor = pb_utils.get_output_tensor_by_name(response, "OUT")
    return np.zeros(0, np.float32) if tensor is None else tensor.as_numpy()
def call(value, size, model="doubles"):
    return result(request(value, size, model).exec())
def place(array):
    start = array.__array_interface__["data"][0]
    for line in open("/proc/self/maps"):
        begin, end = [int(each, 16) for each in line.split()[0].split("-")]
        if begin <= start < end:
            return " ".join(line.split()[5:6]).lstrip("/")
def talk(seed, count, sizes, model="doubles"):
    choose, wrong = random.Random(seed), []
    for number in range(count):
        value, size = float(seed * 1000 + number), choose.choice(sizes)
        array = call(value, size, model)
        if isinstance(array, str) or array.size != size or not (array == 2 * value).all():
            wrong.append((value, size, array if isinstance(array, str) else array.shape))
            continue
        array += 1  # it is the model's own
        kept.append((array, 2 * value + 1))
        wrong += [(value, "kept") for array, value in kept if not (array == value).all()]
        del kept[:-4]
    return wrong
"""
TOGETHER = 'parameters { key: "ONE_PROCESS" value { string_value: "true" } }\n'
"""Bridges are between guests of one process."""
SIZES = "(0, 3, 5_000, 70_000, 300_000, 1_000_000)"
LONG = 300_000


def write(repository: Path, name: str, methods: str, more: str = "") -> None:
    file = write_model(repository, name, methods)
    (file.parents[1] / "config.pbtxt").write_text(f'backend: "python"\n{PORTS}{TOGETHER}{more}')


def serving(tmp_path: Path, *options: str, called: str = "", callers: int = 1) -> ServerProcess:
    models = tmp_path / "models"
    write(models, "doubles", DOUBLES, called)
    group = f"instance_group [{{ count: {callers} kind: KIND_CPU }}]"
    code = write_model(models, "caller", config=f"{group}\n{TOGETHER}")
    code.write_text(code.read_text() + DEFINITIONS)  # in each of its instances
    return ServerProcess(models, *options, work=tmp_path)


def ask(server: ServerProcess, code: str) -> str:
    return evaluate(server, "caller", code)


def bridges_of(pid: int) -> Counter[str]:
    """The bridges that a process maps, by their names."""
    return Counter(re.findall(r"memfd:naiad-(\S+?)(?:_0)+-bridge", Path(f"/proc/{pid}/maps").read_text()))


def guest(server: ServerProcess, model: str) -> int:
    return int(evaluate(server, model, "os.getpid()"))


def host(server: ServerProcess) -> int:
    """The process that has the models."""
    (parent,) = {child.ppid() for child in server.children() if "--instance" in child.cmdline()}
    return int(parent)


def settle(server: ServerProcess, code: str = f"talk(1, 6, [{LONG}])") -> None:
    """Have long tensors go both ways until both go through bridges."""

    def both() -> bool:
        assert ask(server, code) == "[]"
        return len(bridges_of(guest(server, "caller"))) == 2

    until(both, "bridges both ways")


@pytest.mark.parametrize("callers", [1, 2])
def test_tensors_of_all_sizes_come_back_unchanged_and_stay_their_models_own(tmp_path, callers):
    with serving(tmp_path, callers=callers) as server, ThreadPoolExecutor(4) as pool:
        ask(server, "1")
        talks = [pool.submit(ask, server, f"talk({seed}, 30, {SIZES})") for seed in range(1, 9)]
        assert [each.result() for each in talks] == ["[]"] * 8
        threads = f"pool = concurrent.futures.ThreadPoolExecutor(4)\nfound = list(pool.map(lambda seed: talk(seed, 20, {SIZES}), range(4)))\npool.shutdown()"
        assert ask(server, threads) == "done"


def test_responses_of_a_decoupled_model_stay_as_they_were_sent(tmp_path):
    models = tmp_path / "models"
    write(models, "repeats", REPEATS, "model_transaction_policy { decoupled: true }")
    with serving(tmp_path) as server:
        code = f"[(a.size, float(a.min()), float(a.max())) for a in [result(r) for r in request(7, {LONG}, 'repeats').exec(decoupled=True)] if a.size]"
        for _ in range(4):
            assert ask(server, code) == repr([(LONG, float(n), float(n)) for n in range(7, 12)])
        assert (
            ask(
                server,
                f"[r for _ in range(5) for r in [request(1, {LONG}, 'repeats').exec(decoupled=True)]][0].cancel()",
            )
            == "None"
        )
        assert ask(server, code) == repr([(LONG, float(n), float(n)) for n in range(7, 12)])


def test_a_guest_that_dies_fails_its_own_call_and_leaves_nothing(tmp_path):
    with serving(tmp_path) as server:
        settle(server)
        process = host(server)
        before = descriptors(process), bridges_of(process)
        for _ in range(3):
            assert "exit" in ask(server, f"call(-1, {LONG})")
            settle(server)
        until(lambda: (descriptors(process), bridges_of(process)) == before, "descriptors and mappings as before")
        assert bridges_of(guest(server, "caller")) == {"caller": 1, "doubles": 1}


def test_a_caller_that_dies_during_a_call_leaves_nothing(tmp_path):
    with serving(tmp_path) as server:
        settle(server)
        process = host(server)
        before = descriptors(process), bridges_of(process)
        pool = "pool = concurrent.futures.ThreadPoolExecutor(4)"
        code = f"{pool}; futures = [pool.submit(call, 1, {LONG}) for _ in range(8)]; os._exit(9)"
        for _ in range(3):
            assert send_code(server, "caller", code).status == 500
            until(lambda: server.get("/v2/models/caller/ready").status == 200, "the caller to be there again")
            settle(server)
        until(lambda: (descriptors(process), bridges_of(process)) == before, "descriptors and mappings as before")


def test_a_model_with_a_memory_limit_gets_its_tensors_by_copies(tmp_path):
    limit = 'parameters { key: "memory_limit" value { string_value: "2G" } }'
    with serving(tmp_path, called=limit) as server:
        for _ in range(3):
            assert ask(server, f"talk(1, 5, [{LONG}])") == "[]"
        assert bridges_of(host(server)) == {}


@pytest.mark.parametrize("options", [(), ("--frontends=2",)])
def test_ensembles_pass_long_tensors_from_step_to_step(tmp_path, options):
    """One chain; and one whose first output goes to two steps and to the client, so that it is copied."""
    models = tmp_path / "models"
    for name in ("first", "second", "third"):
        write(models, name, DOUBLES)
    chain = [("first", "IN", "a"), ("second", "a", "b"), ("third", "b", "OUT")]
    fork = [("first", "IN", "OUT"), ("second", "OUT", "x"), ("third", "OUT", "y")]
    for name, steps, outputs in (("chain", chain, "OUT FP32 -1"), ("fork", fork, "OUT FP32 -1,x FP32 -1,y FP32 -1")):
        maps = [f"{model} IN={source} > OUT={target}" for model, source, target in steps]
        write_ensemble(models, name, *maps, inputs="IN FP32 -1", outputs=outputs)
    with serving(tmp_path, *options) as server, ThreadPoolExecutor(4) as pool:

        def talk(seed: int) -> list[str]:
            wrong = []
            with tritonclient.http.InferenceServerClient(server.http_url) as client:
                for number in range(12):
                    value, size = float(seed * 100 + number), (LONG, 70_000, 1_000_000)[number % 3]
                    given = input_of(tritonclient.http, "IN", np.full(size, value, np.float32))
                    for model, factors in (("chain", {"OUT": 8}), ("fork", {"OUT": 2, "x": 4, "y": 4})):
                        result = client.infer(model, [given])
                        for name, factor in factors.items():
                            array = result.as_numpy(name)
                            if array.shape != (size,) or not (array == factor * value).all():
                                wrong.append(f"{model} {name} {size} of {value}")
            return wrong

        assert list(pool.map(talk, range(1, 5))) == [[]] * 4
        assert set(bridges_of(host(server))) == {"first", "second"}
        assert ask(server, f"talk(1, 1, [{LONG}], 'first')") == "[]"
        assert ask(server, f"[float(call(1, {LONG}, 'chain').sum()) for _ in range(4)]") == repr([8.0 * LONG] * 4)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
