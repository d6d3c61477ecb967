"""A message that cannot be packed costs one request: its client gets the error, and the instance serves the next one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from backends.remote.models import add_remote
from serving.ensembles.ensembles import ask, outputs, write_function, write_model
from serving.repositories import repository
from serving.written import document_of
from support.client_inputs import input_of
from support.packing_faults import CAUSE
from support.server import Reply, ServerProcess

FAULTS = Path(__file__).parents[2] / "support" / "packing_faults.py"
COMMAND = (sys.executable, FAULTS)
SENT = f"unexpected struct.error: {CAUSE}; see the log of the server"
BLOCK_BYTES = 400_000
"""Inputs of such a request are in a block of the segment, not in the message."""


def write_models(folder: Path) -> Path:
    repository(folder, ["identity", "runs_code", "says_what_it_got"])
    write_function(folder, "plain", "x + 1")
    text = 'input { name: "text_input" data_type: TYPE_STRING dims: 1 }\noutput { name: "text_output" data_type: TYPE_STRING dims: 1 }\n'
    write_model(
        folder,
        "texts",
        "def answer(self, request):\n"
        "    text = self.input(request, 'text_input')\n"
        "    return pb_utils.InferenceResponse([pb_utils.Tensor('text_output', text)])\n",
        "",
        text,
    )
    return folder


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two frontends"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("unpackable")
    models = write_models(folder / "models")
    flags = (
        f"--processes={max(int(request.param), 1)}",
        "--model-control-mode=explicit",
        "--load-model=*",
    )
    with ServerProcess(models, *flags, work=folder, command=COMMAND, timeout=30) as process:
        guests = {child.pid for child in process.children()}
        yield process
        assert "is killed" not in process.log
        assert guests <= {child.pid for child in process.children()}, "a guest was replaced"


def error_of(reply: Reply, model: str) -> None:
    assert reply.status == 500, reply.body
    assert reply.error == f"cannot send the request to '{model}': {SENT}"


def one(server: ServerProcess, model: str, value: float, name: str = "IN", **more: Any) -> list[float]:
    (found,) = outputs(ask(server, model, value, name=name, **more)).values()
    return found


@pytest.mark.parametrize("values", [1, BLOCK_BYTES // 4], ids=["in the message", "in a block"])
def test_a_request_over_http_gets_the_error_and_the_next_one_its_answer(server: ServerProcess, values: int) -> None:
    for _ in range(4):  # more often than the layout of requests takes to be known
        assert one(server, "plain", 1, id="good") == [2]
        error_of(ask(server, "plain", *[1.0] * values, name="IN", id="unpackable"), "plain_0")
        assert one(server, "plain", 1, id="good") == [2]


def test_a_request_over_grpc_gets_the_error_and_the_next_one_its_answer(server: ServerProcess) -> None:
    tensor = input_of(grpcclient, "IN", np.ones(1, np.float32))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for _ in range(4):
            with pytest.raises(grpcclient.InferenceServerException) as caught:
                client.infer("plain", [tensor], request_id="unpackable", client_timeout=30)
            assert caught.value.message() == f"cannot send the request to 'plain_0': {SENT}"
            assert client.infer("plain", [tensor], client_timeout=30).as_numpy("OUT").tolist() == [2]


def run(server: ServerProcess, code: str) -> Any:
    body = {**document_of(code), "outputs": [{"name": "OUT"}]}
    return json.loads(outputs(server.post("/v2/models/runs_code/infer", body))["OUT"][0])


def test_a_model_that_calls_gets_the_error_as_its_result(server: ServerProcess) -> None:
    call = "to('identity', tensor(1, 2), request_id={!r})"
    code = f"return [answer([value_of({call.format('unpackable')}.exec()), value_of({call.format('good')}.exec())])]"
    assert run(server, code) == [
        {"error": f"cannot send the request to 'identity_0': {SENT}", "code": 1},
        {"OUT": [1, 2]},
    ]


@pytest.mark.parametrize("count", [1, BLOCK_BYTES // 4], ids=["in the message", "in a block"])
def test_a_result_that_cannot_be_packed_ends_the_call_with_an_error(server: ServerProcess, count: int) -> None:
    call = f"to('identity', tensor(*[1] * {count}), request_id={{!r}})"
    bad, good = call.format("unpackable result"), call.format("good")
    code = f"return [answer([value_of({bad}.exec()), len(value_of({good}.exec())['OUT'])])]"
    assert run(server, code) == [{"error": f"cannot pass on the result of a call: {SENT}", "code": 1}, count]


def test_a_response_whose_body_cannot_be_made_is_an_error(server: ServerProcess) -> None:
    for _ in range(2):
        reply = server.post("/v2/models/texts/generate", {"text_input": "x", "id": "unpackable body"})
        assert (reply.status, reply.error) == (400, "internal error; the server's log has the details")
        assert server.post("/v2/models/texts/generate", {"text_input": "x"}).json()["text_output"] == "x"


def test_a_message_that_processes_of_the_server_cannot_pack_is_an_error(server: ServerProcess) -> None:
    """The process with the model has nothing to pack: requests over connections to it are answered."""
    is_split = bool(server.others())
    found = Counter[str]()
    for _ in range(
        24
    ):  # connections: the kernel gives none of them to one of two processes once in eight million times
        for request_id, action in (
            ("unpackable message", "submit the request to 'says_what_it_got'"),
            ("unpackable reply", "pass on a response of 'says_what_it_got'"),
        ):
            reply = ask(server, "says_what_it_got", 1, name="IN", id=request_id)
            if reply.status != 200:
                assert (reply.status, reply.error) == (500, f"cannot {action}: {SENT}")
                found[request_id] += 1
        assert ask(server, "says_what_it_got", 1, name="IN", id="good").status == 200
    assert len(found) == (2 if is_split else 0)


def test_a_remote_model_passes_the_error_on_and_serves_the_next_request(server: ServerProcess, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name, url in (("by_http", f"http://{server.http_url}"), ("by_grpc", f"grpc://{server.grpc_url}")):
        add_remote(repository, name, {"url": url, "model": "plain"})
    with ServerProcess(repository, work=tmp_path, timeout=30) as caller:
        for name in ("by_http", "by_grpc"):
            reply = ask(caller, name, 1, name="IN", id="unpackable")
            assert reply.status == 500
            assert f"cannot send the request to 'plain_0': {SENT}" in reply.error
            assert one(caller, name, 1) == [2]
