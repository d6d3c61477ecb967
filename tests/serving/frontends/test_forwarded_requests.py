"""Small requests to a plain model, which the owner of several frontend processes forwards: nothing a client can see."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from support.console import shown_instance, shown_models
from support.server import Reply, ServerProcess

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0] < 0:
                responses.append(pb_utils.InferenceResponse([], pb_utils.TritonError("no root of %g" % x[0])))
                continue
            if x[0] > 1000:
                open({fifo!r}).read()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * {factor})]))
        return responses
"""
BLOCKS = 2000


class Served:
    """A server with the model, which can be changed."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        (self.models / "times" / "1").mkdir(parents=True)
        (self.models / "times" / "config.pbtxt").write_text(CONFIG)
        self.write(2)
        flags = ("--processes=2", "--ui=true", "--model-control-mode=explicit", "--load-model=*")
        self.server = ServerProcess(self.models, *flags, work=folder)

    def write(self, factor: int) -> None:
        text = MODEL.replace("{fifo!r}", repr(str(self.fifo))).replace("{factor}", str(factor))
        (self.models / "times" / "1" / "model.py").write_text(text)

    def ask(self, value: float, request_id: str = "") -> Reply:
        body = {"id": request_id, "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}
        return self.server.post("/v2/models/times/infer", body)

    def reader(self) -> IO[bytes] | None:
        """The other end of the FIFO, once the model reads it."""
        try:
            return os.fdopen(os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK), "wb")
        except OSError:
            return None

    def in_flight(self) -> int:
        shown = shown_models(self.server)[0]
        return int(shown["running"]) + int(shown["waiting"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("forwarded"))
    with made.server:
        yield made


def answer(reply: Reply) -> list[float]:
    assert reply.status == 200, reply.body
    return list(reply.json()["outputs"][0]["data"])


def test_answers_errors_and_ids_belong_to_their_requests(served: Served) -> None:
    def ask(number: int) -> None:
        value = -number if number % 5 == 0 else number
        reply = served.ask(value, f"request {number}")
        if value < 0:
            assert (reply.status, reply.error) == (500, f"no root of {value}")
        else:
            assert answer(reply) == [2 * value]
            assert reply.json()["id"] == f"request {number}"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(1, 101))) == [None] * 100


def test_forwarded_requests_are_counted(served: Served) -> None:
    """An error that the model responds with counts as a response, as in the reference."""

    def counts() -> tuple[int, ...]:
        found = served.server.get("/v2/models/times/stats").json()["model_stats"][0]
        stats = found["inference_stats"]
        figures = [stats[name]["count"] for name in ("success", "fail", "queue", "compute_infer")]
        return (found["inference_count"], found["execution_count"], *figures)

    before = counts()
    for value in (1, 2, 3, 4, -5, -6):
        served.ask(value)
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [6, 6, 6, 0, 6, 6]


def test_requests_that_a_killed_guest_had_not_begun_are_answered_by_the_next_one(served: Served) -> None:
    for number in range(40):  # so fast that the guest may hold several requests
        assert answer(served.ask(number)) == [2 * number]
    killed = shown_instance(served.server, "times")["pid"]
    with ThreadPoolExecutor(3) as pool:
        begun = pool.submit(served.ask, BLOCKS)
        until: Callable[..., Any] = served.server.wait_for
        with until(served.reader, "the model to read"):  # and it reads on, since nothing is written
            others = [pool.submit(served.ask, value) for value in (7, 8)]
            until(lambda: served.in_flight() == 3, "the others to arrive")
            os.kill(killed, signal.SIGKILL)
            until(lambda: not psutil.pid_exists(killed), "the guest to end")
        assert (begun.result().status, "was killed by SIGKILL" in begun.result().error) == (500, True)
        assert [answer(other.result()) for other in others] == [[14], [16]]
    assert shown_instance(served.server, "times")["pid"] != killed


def test_a_reloaded_model_answers_at_once(served: Served) -> None:
    try:
        for factor in (3, 5):
            for number in range(10):
                answer(served.ask(number))
            served.write(factor)
            assert served.server.post("/v2/repository/models/times/load").status == 200
            assert [answer(served.ask(number)) for number in range(10)] == [[factor * number] for number in range(10)]
    finally:
        served.write(2)
        assert served.server.post("/v2/repository/models/times/load").status == 200


def test_an_unloaded_model_is_refused_until_it_is_loaded_again(served: Served) -> None:
    assert answer(served.ask(4)) == [8]
    assert served.server.post("/v2/repository/models/times/unload").status == 200
    served.server.wait_for(lambda: served.ask(4).status != 200, "the model to be gone")
    assert "'times' has no available versions" in served.ask(4).error
    assert served.server.post("/v2/repository/models/times/load").status == 200
    assert [answer(served.ask(4)) for _ in range(8)] == [[8]] * 8
