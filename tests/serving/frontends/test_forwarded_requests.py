"""Small requests to a plain model, which the owner of several frontend processes forwards: nothing a client can see."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.model_files import python_config, write_files
from support.server import Reply, ServerProcess

CONFIG = python_config("X FP32 1", "Y FP32 1", "instance_group { count: 1 kind: KIND_CPU }\n")
MODEL = """
def respond(self, request):
    x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
    if x[0] < 0:
        return pb_utils.InferenceResponse([], pb_utils.TritonError("no root of %g" % x[0]))
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * {factor})])
"""


class Served:
    """A server with the model, which can be changed."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.write(2)
        flags = ("--processes=2", "--model-control-mode=explicit", "--load-model=*")
        self.server = ServerProcess(self.models, *flags, work=folder)

    def write(self, factor: int) -> None:
        write_files(self.models, "times", CONFIG, MODEL.replace("{factor}", str(factor)))

    def ask(self, value: float, request_id: str = "") -> Reply:
        body = {"id": request_id, "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}
        return self.server.post("/v2/models/times/infer", body)


@pytest.fixture(scope="module")
def served(work: Path) -> Iterator[Served]:
    made = Served(work)
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
