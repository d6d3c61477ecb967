"""Calls of models with one instance each, which are in different processes of the server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving.processes.callers import PARENT, ask, rings, write_runner
from serving.processes.reaching import connection_of_each, metrics
from serving.written import evaluate
from support.server import ServerProcess
from support.waiting import until

MODELS = ("m1", "m2", "m3", "m4")
QUEUES = ("queue_1", "queue_2", "queue_3")
LONG = 600_000
"""Bytes of a tensor that travels in shared memory."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes") / "models"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    for name in MODELS:
        write_runner(models, name)
    for name in QUEUES:
        write_runner(models, name, "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n")
    traces = ("--trace-config=level=OFF", f"--trace-config=triton,file={models.parent / 'traces'}")
    options = ("--processes=3", "--model-control-mode=explicit", "--load-model=*", *traces)
    with ServerProcess(models, *options, work=models.parent) as process:
        yield process


@pytest.fixture
def homes(server: ServerProcess) -> Mapping[int, str]:
    """A model in each process beside the coordinator, by the process."""
    found = {int(eval(evaluate(server, name, PARENT))): name for name in MODELS}
    found.pop(server.pid, None)
    assert len(found) == 2, found
    return found


@pytest.fixture
def pair(homes: Mapping[int, str]) -> tuple[str, str]:
    """Two models in two processes beside the coordinator."""
    first, second = homes.values()
    return first, second


@pytest.fixture
def connection(server: ServerProcess, homes: Mapping[int, str]) -> Iterator[http.client.HTTPConnection]:
    """A connection to the process of the first of both models."""
    with connection_of_each(server) as connections:
        yield connections[next(iter(homes))]


@contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    """The coordinator does nothing meanwhile."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_call_to_another_process_does_not_pass_through_the_coordinator(
    server: ServerProcess, connection: http.client.HTTPConnection, pair: tuple[str, str]
) -> None:
    caller, called = pair
    ask(connection, f"[call({called!r}, '1') for _ in range(3)]", caller)
    until(lambda: ask(connection, f"call({called!r}, '6 * 7')", caller) == "42", "the route")

    def asks() -> object:
        return ask(connection, f"[call({called!r}, f'{{number}} + 1') for number in range(20)]", caller)

    with stopped(server):
        assert asks() == [str(number + 1) for number in range(20)]


@pytest.mark.parametrize("size", [10, 20_000, LONG])
def test_tensors_of_calls_to_another_process_arrive_as_they_were_sent(
    connection: http.client.HTTPConnection, pair: tuple[str, str], size: int
) -> None:
    caller, called = pair
    code = f"""
for number in range(8):
    text = (str(number) * {size})
    assert call({called!r}, repr(text)) == repr(text)
    assert call({called!r}, f"'{{number}}' * {size}") == repr(text)
"""
    assert ask(connection, code, caller) == "done"


def test_calls_of_threads_wait_for_the_only_instance_and_get_their_own_answers(
    connection: http.client.HTTPConnection, pair: tuple[str, str]
) -> None:
    caller, called = pair
    code = f"""
found = {{}}
def run(number):
    for count in range(10):
        found[number, count] = call({called!r}, f"time.sleep(0.001) or {{number * 100 + count}}")
threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert found == {{(number, count): str(number * 100 + count) for number in range(6) for count in range(10)}}, found
"""
    assert ask(connection, code, caller) == "done"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("'1', ['NONE']", "unexpected inference output 'NONE' for model '{}'"),
        (
            "np.zeros([1], np.float32)",
            "[request id: <id_unknown>] inference input 'CODE' data-type is 'FP32', but model '{}' expects 'BYTES'",
        ),
    ],
)
def test_a_call_that_the_other_process_does_not_accept_ends_with_the_reason(
    connection: http.client.HTTPConnection, pair: tuple[str, str], arguments: str, text: str
) -> None:
    caller, called = pair
    expected = f"Model {called} - Error when running inference: {text.format(called)}"
    for _ in range(3):
        assert ask(connection, f"call({called!r}, {arguments})", caller) == expected


@pytest.mark.parametrize("is_traced", [False, True])
def test_what_a_full_queue_of_another_process_does_not_take_gets_the_reason_everywhere(
    server: ServerProcess, homes: Mapping[int, str], tmp_path: Path, *, is_traced: bool
) -> None:
    """Clients get a status, also of a stream; calls get the error of a call; with and without traces."""
    name, home = next((each, pid) for each in QUEUES if (pid := int(eval(evaluate(server, each, PARENT)))) in homes)
    caller = next(model for pid, model in homes.items() if pid != home)
    reason, end = "[request id: <id_unknown>] Exceeds maximum queue size", tmp_path / "end"
    waits = f"open('{end}.begun', 'w').close()\nwhile not os.path.exists('{end}'): time.sleep(0.002)"
    inputs = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["1"]}]}
    if is_traced:
        assert server.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}).status == 200
    threads = [threading.Thread(target=evaluate, args=(server, name, code)) for code in (waits, "1")]
    try:
        threads[0].start()
        until(Path(f"{end}.begun").exists, "the model to execute")
        threads[1].start()
        pending = f'nv_inference_pending_request_count{{model="{name}",version="1"}} 1'
        until(lambda: pending in metrics(server), "a request to wait")
        with connection_of_each(server) as connections:
            for each in connections.values():
                for path, body in (("infer", inputs), ("generate_stream", {"CODE": "1"})):
                    each.request("POST", f"/v2/models/{name}/{path}", json.dumps(body))
                    response = each.getresponse()
                    assert (response.status, json.loads(response.read())) == (503, {"error": reason}), path
                expected = f"Model {name} - Error when running inference: {reason}"
                assert ask(each, f"call({name!r}, '1')", caller) == expected
    finally:
        end.touch()
        for thread in threads:
            thread.join(60)
        assert server.post("/v2/trace/setting", {"trace_level": ["OFF"]}).status == 200


@pytest.mark.parametrize("way", ["call({0!r}, {1!r})", "asyncio.run(awaited({0!r}, {1!r}))"])
def test_a_cycle_through_the_homes_of_two_models_is_found(
    connection: http.client.HTTPConnection, pair: tuple[str, str], way: str
) -> None:
    caller, called = pair
    inner = way.format(caller, "1")
    for _ in range(3):
        text = ask(connection, way.format(called, inner), caller)
        assert rings(text) == [{f"{caller}_0", f"{called}_0"}], text
    assert ask(connection, "1", caller) == ask(connection, "1", called) == 1


def test_a_model_that_calls_itself_in_its_home_gets_an_error(
    connection: http.client.HTTPConnection, pair: tuple[str, str]
) -> None:
    caller, _ = pair
    for _ in range(3):
        text = ask(connection, f"call({caller!r}, '1')", caller)
        assert rings(text) == [{f"{caller}_0"}], text


def test_a_call_that_waits_for_long_is_answered(
    server: ServerProcess, connection: http.client.HTTPConnection, pair: tuple[str, str], tmp_path: Path
) -> None:
    """The called instance executes a request of a client meanwhile."""
    caller, called = pair
    folder = tmp_path / "met"
    folder.mkdir()
    busy = threading.Thread(target=evaluate, args=(server, called, f"meet({str(folder)!r}, 'busy', 2)"))
    busy.start()
    until((folder / "busy").exists, "the request")
    releasing = threading.Timer(0.5, (folder / "released").touch)
    releasing.start()
    assert ask(connection, f"call({called!r}, '42')", caller) == "42"
    for thread in (busy, releasing):
        thread.join()


def test_calls_go_on_while_the_called_model_is_loaded_again_in_its_home(
    server: ServerProcess, connection: http.client.HTTPConnection, models: Path, pair: tuple[str, str]
) -> None:
    caller, called = pair
    stop = threading.Event()
    found: list[object] = []

    def run() -> None:
        while not stop.is_set():
            found.append(ask(connection, f"[call({called!r}, '7') for _ in range(20)]", caller))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for number in range(2):
            write_runner(models, called, f'parameters {{ key: "n" value {{ string_value: "{number}" }} }}\n')
            assert server.post(f"/v2/repository/models/{called}/load").status == 200
    finally:
        stop.set()
        thread.join()
    assert found
    assert all(each == ["7"] * 20 for each in found), found


def test_a_call_fails_when_the_process_that_has_it_exits_and_the_next_one_is_answered(
    server: ServerProcess, connection: http.client.HTTPConnection, homes: Mapping[int, str], tmp_path: Path
) -> None:
    (_, caller), (victim, called) = homes.items()
    folder = tmp_path / "met"
    folder.mkdir()

    def kill() -> None:
        until((folder / "called").exists, "the call")
        os.kill(victim, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    inner = f"meet({str(folder)!r}, 'called', 2)"
    text = ask(connection, f"call({called!r}, {inner!r})", caller)
    killing.join()
    assert "has exited; send it again" in text
    until(lambda: ask(connection, f"call({called!r}, '1')", caller) == "1", "its next process")
