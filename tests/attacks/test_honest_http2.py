"""Clients that send many frames for good reasons are never taken for floods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from attacks.conftest import warm_up
from attacks.floods import Flooder, Requests, data, infer_message, joined, message
from attacks.watching import attacked_server, watched
from support.client_inputs import input_of
from support.model_files import python_config, write_files
from support.server import HOST, ServerProcess
from support.waiting import until
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

_DECOUPLED_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_DECOUPLED = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(int(request.inputs()[0].as_numpy()[0])):
            tensor = pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_GATE = 'parameters [ { key: "gate" value: { string_value: "GATE" } } ]\n'
_SLOW = """
def initialize(self, args):
    self.gate = json.loads(args["model_config"])["parameters"]["gate"]["string_value"]

def respond(self, request):
    while os.path.exists(self.gate):
        time.sleep(0.005)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""


@pytest.fixture(scope="module")
def gate(work: Path) -> Path:
    """While this file exists, the model `slow` does not respond."""
    return work / "closed"


@pytest.fixture(scope="module")
def server(repository: Path, gate: Path, work: Path) -> Iterator[ServerProcess]:
    more = work / "models"
    write_files(more, "repeat", _DECOUPLED_CONFIG, _DECOUPLED)
    slow = python_config("INPUT0 FP32 -1", "OUTPUT0 FP32 -1", _GATE.replace("GATE", str(gate)))
    write_files(more, "slow", slow, _SLOW)
    with attacked_server([repository, more], work=work) as started:
        warm_up(started)
        yield started


def connected(server: ServerProcess) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"{HOST}:{server.grpc_port}")


def inputs(size: int = 1) -> list[triton.InferInput]:
    return [input_of(triton, "INPUT0", np.arange(size, dtype=np.float32))]


@pytest.mark.endurance
def test_requests_with_varying_metadata_are_answered(server: ServerProcess) -> None:
    """Each block enters the table, so none is known by its bytes."""

    def ask(number: int) -> bool:
        headers = {"x-request-id": f"{number:032}", "traceparent": f"00-{number:032}-{number:016}-01"}
        response = client.infer("identity", inputs(), headers=headers, client_timeout=240)
        return bool(response.as_numpy("OUTPUT0")[0] == 0)

    with connected(server) as client, ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(3000)))


def test_thousands_of_calls_may_be_cancelled_together(server: ServerProcess, gate: Path) -> None:
    """A client gives up: each of its calls is reset, in rounds, while nothing is answered."""
    gate.touch()
    try:
        with connected(server) as client:
            for _ in range(3):
                failed = Counter(1500)
                calls = [client.async_infer("slow", inputs(), failed.count) for _ in range(1500)]
                for call in calls:
                    call.cancel()
                failed.wait()
                assert {str(error) for error in failed.errors} == {
                    "[StatusCode.CANCELLED] Locally cancelled by application!"
                }
            assert client.is_server_live()
    finally:
        gate.unlink()
    with connected(server) as client:
        assert client.infer("slow", inputs(), client_timeout=240).as_numpy("OUTPUT0").tolist() == [0]


@pytest.mark.endurance
def test_a_client_with_thousands_of_requests_in_flight_may_disconnect(server: ServerProcess, gate: Path) -> None:
    """All of them are cancelled; other clients are served meanwhile."""
    content = message(infer_message("slow"))
    gate.touch()
    try:
        with watched(server) as seen:
            for _ in range(2):
                requests = Requests("ModelInfer")
                with closing(Flooder(server.grpc_port)) as client:
                    numbers = range(1, 10_001, 2)
                    client.send(joined(requests.begin(each) + data(each, content, ends=True) for each in numbers))
                    client.synchronize()
            until(lambda: server.get("/v2/health/live").status == 200, "the server")
    finally:
        gate.unlink()
    seen.assert_others_served()
    with connected(server) as client:
        assert client.infer("slow", inputs(), client_timeout=240).as_numpy("OUTPUT0").tolist() == [0]


@pytest.mark.endurance
def test_thousands_of_calls_may_time_out(server: ServerProcess, gate: Path) -> None:
    gate.touch()
    try:
        with connected(server) as client:
            for _ in range(3):
                failed = Counter(1000)
                for _ in range(1000):
                    client.async_infer("slow", inputs(), failed.count, client_timeout=0.5)
                failed.wait()
                assert {str(error) for error in failed.errors} == {"[StatusCode.DEADLINE_EXCEEDED] Deadline Exceeded"}
            assert client.is_server_live()
    finally:
        gate.unlink()


@pytest.mark.endurance
def test_tens_of_thousands_of_tiny_responses_are_sent(server: ServerProcess) -> None:
    """A stream of responses of a few bytes, for which the client opens windows and measures round trips."""
    responses = Counter(30_000)
    count = input_of(triton, "COUNT", np.array([10_000], np.int32))
    with connected(server) as client:
        client.start_stream(responses.count)
        for _ in range(3):
            client.async_stream_infer("repeat", [count])
        responses.wait()
        client.stop_stream()
    assert not responses.errors


@pytest.mark.endurance
def test_thousands_of_requests_on_a_stream_are_answered(server: ServerProcess) -> None:
    """Each is a DATA frame of about a hundred bytes that does not end its stream."""
    responses = Counter(5000)
    with connected(server) as client:
        client.start_stream(responses.count)
        for number in range(5000):
            client.async_stream_infer("identity", inputs(), request_id=str(number))
        responses.wait()
        client.stop_stream()
    assert not responses.errors


def test_long_responses_reach_a_client_that_reads_slowly(server: ServerProcess) -> None:
    """The client opens its window by portions as its application takes the responses."""
    responses = Counter(8, pause=threading.Event())
    size = 1 << 20
    with connected(server) as client:
        client.start_stream(responses.count)
        for _ in range(8):
            client.async_stream_infer("identity", inputs(size))
        responses.pause.set()
        responses.wait()
        client.stop_stream()
    assert not responses.errors


class Counter:
    """Counts the results of calls.

    Attributes:
        errors: Those that failed.
        pause: What the first result waits for.
    """

    def __init__(self, count: int, pause: threading.Event | None = None) -> None:
        self.errors: list[InferenceServerException] = []
        self.pause = pause or threading.Event()
        if pause is None:
            self.pause.set()
        self._left = count
        self._lock = threading.Lock()
        self._is_complete = threading.Event()

    @property
    def count(self) -> Callable[..., None]:
        """The callback of calls."""
        return lambda result, error: self._count(error)

    def _count(self, error: InferenceServerException | None) -> None:
        self.pause.wait(240)
        with self._lock:
            if error is not None:
                self.errors.append(error)
            self._left -= 1
            if not self._left:
                self._is_complete.set()

    def wait(self) -> None:
        """Wait for the last result."""
        assert self._is_complete.wait(240), f"{self._left} results are missing"
