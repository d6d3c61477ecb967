"""Streams of a decoupled model: their clients read them to the end, or leave them while the model sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from attacks.clients import connected
from attacks.watching import attacked_server, harmless
from support.model_files import python_config, write_files
from support.server import ServerProcess, free_ports
from tritonclient.grpc import InferenceServerClient, InferInput

SIZE = 100_000
"""Bytes of an output: below the 128 KiB from which outputs stay in the guest's memory."""
WINDOW = 16 << 20
"""Bytes of one request's responses that a guest may send before its client has read them."""
GROWTH = 4 * WINDOW
FLOODING = 20_000
"""Responses of a stream that is left: 2 GB."""
FLOOD = """
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


def asked(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = asked(request, "text_input")
            if text is None:
                count, array = int(asked(request, "COUNT")), np.full({size}, 7, np.uint8)
                outputs = [pb_utils.Tensor("OUT%d" % n, array) for n in range(int(asked(request, "OUTPUTS") or 1))]
            else:
                count, array = int(text), np.array([b"x" * {size}], np.object_)
                outputs = [pb_utils.Tensor("text_output", array)]
            Path(__file__).with_name("begun").touch()
            for _ in range(count):
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Sends as many responses as it is asked for, and never asks whether its client has left."""
CALLER = """
def execute(self, requests):
    count = pb_utils.Tensor("COUNT", np.array([{flooding}], np.int64))
    call = pb_utils.InferenceRequest(model_name="flood", requested_output_names=["OUT0"], inputs=[count])
    for _ in requests:
        next(iter(call.exec(decoupled=True)))
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.int64))]) for _ in requests]
"""
"""Calls the other model, and drops the iterator of its responses after the first one."""
OUTPUTS = 50


@pytest.fixture(scope="module")
def models(work: Path) -> Path:
    inputs = "COUNT INT64 1 optional,OUTPUTS INT64 1 optional,text_input STRING 1 optional"
    outputs = ",".join(["text_output STRING 1", *(f"OUT{number} UINT8 -1" for number in range(OUTPUTS))])
    decoupled = "model_transaction_policy { decoupled: true }\n"
    write_files(work, "flood", python_config(inputs, outputs, decoupled), FLOOD.format(size=SIZE))
    write_files(work, "caller", python_config("IN INT64 1", "OUT INT64 1"), CALLER.format(flooding=FLOODING))
    return work


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(0, id="one process"),
        pytest.param(2, id="two frontends", marks=pytest.mark.endurance),
    ],
)
def server(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server in one process, and one with two frontend processes."""
    template = models.with_name(f"{models.name}.jinja")
    template.write_text("{{ messages[0]['content'] }}")
    options = [f"--openai-port={free_ports(1)[0]}", f"--openai-chat-template={template}", "--mcp"]
    if request.param:
        options.append(f"--processes={request.param}")
    with attacked_server(models, *options, work=tmp_path_factory.mktemp("server")) as started:
        for _ in range(16 if request.param else 2):  # each process imports what it imports at the first request
            assert started.post("/v2/models/flood/generate_stream", {"COUNT": 1}).status == 200
            assert started.get("/v2/health/live").status == 200
        yield started


def post(path: str, **document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def leave_after(server: ServerProcess, port: int, request: bytes) -> None:
    """Send a request, and leave when its response has begun."""
    with connected(port) as client:
        client.sendall(request)
        received = client.recv(1000)
        assert received.startswith(b"HTTP/1.1 200"), received


def leave_before(server: ServerProcess, models: Path, port: int, request: bytes) -> None:
    """Send a request, and leave when the model has begun: its response has not."""
    begun = models / "flood" / "1" / "begun"
    begun.unlink(missing_ok=True)
    with connected(port) as client:
        client.sendall(request)
        server.wait_for(begun.exists, "the model to begin")


def openai_port(server: ServerProcess) -> int:
    return next(int(option.partition("=")[2]) for option in server.command if option.startswith("--openai-port="))


def leave_generate_stream(server: ServerProcess, models: Path) -> None:
    leave_after(server, server.http_port, post("/v2/models/flood/generate_stream", COUNT=FLOODING))


def leave_generate(server: ServerProcess, models: Path) -> None:
    leave_before(server, models, server.http_port, post("/v2/models/flood/generate", COUNT=FLOODING))


def leave_completion_stream(server: ServerProcess, models: Path) -> None:
    request = post("/v1/completions", model="flood", prompt=str(FLOODING), stream=True)
    leave_after(server, openai_port(server), request)


def leave_completion(server: ServerProcess, models: Path) -> None:
    leave_before(server, models, openai_port(server), post("/v1/completions", model="flood", prompt=str(FLOODING)))


def leave_messages_stream(server: ServerProcess, models: Path) -> None:
    messages = [{"role": "user", "content": str(FLOODING)}]
    request = post("/v1/messages", model="flood", max_tokens=1, messages=messages, stream=True)
    leave_after(server, openai_port(server), request)


def leave_tool(server: ServerProcess, models: Path) -> None:
    call = {"name": "flood", "arguments": {"COUNT": [FLOODING]}}
    request = post("/mcp", jsonrpc="2.0", id=1, method="tools/call", params=call)
    leave_before(server, models, openai_port(server), request)


def leave_grpc_stream(server: ServerProcess, models: Path) -> None:
    begun = threading.Event()
    with InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: begun.set())
        count = InferInput("COUNT", [1], "INT64")
        count.set_data_from_numpy(np.array([FLOODING]))
        client.async_stream_infer("flood", [count])
        assert begun.wait(240)
        client.stop_stream(cancel_requests=True)


def leave_call(server: ServerProcess, models: Path) -> None:
    document = {"inputs": [{"name": "IN", "datatype": "INT64", "shape": [1], "data": [1]}]}
    assert server.post("/v2/models/caller/infer", document).status == 200


LEAVING = [leave_generate_stream, leave_tool, leave_grpc_stream, leave_call]
LEAVING_TOO = [leave_generate, leave_completion_stream, leave_completion, leave_messages_stream]


def guest_peak(server: ServerProcess) -> int:
    """The most memory that the model's guest has had, in bytes."""
    return max(
        int(line.split()[1]) << 10
        for process in server.children()
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )


@pytest.mark.parametrize(
    "leave",
    [*LEAVING, *(pytest.param(each, marks=pytest.mark.endurance) for each in LEAVING_TOO)],
    ids=lambda leave: leave.__name__,
)
def test_a_client_that_leaves_a_stream_delays_no_request_and_leaves_no_memory_behind(
    server: ServerProcess, models: Path, leave: Callable[[ServerProcess, Path], None]
) -> None:
    with harmless(server, GROWTH):
        leave(server, models)
        # The model handles the next request when it has done with this one.
        assert server.post("/v2/models/flood/generate_stream", {"COUNT": 1}).status == 200
    assert guest_peak(server) < 4 * GROWTH


@pytest.mark.parametrize(("outputs", "count"), [(1, 400), (OUTPUTS, 4)], ids=["many responses", "many outputs"])
def test_a_stream_that_is_read_delays_no_request(server: ServerProcess, outputs: int, count: int) -> None:
    with harmless(server), ExitStack() as stack:
        client = stack.enter_context(connected(server.http_port))
        client.sendall(post("/v2/models/flood/generate_stream", COUNT=count, OUTPUTS=outputs))
        received = bytearray()
        events = 0
        while not received.endswith(b"0\r\n\r\n"):
            part = client.recv(1 << 20)
            assert part, "the stream was cut"
            events += (received[-8:] + part).count(b"data: {") - received[-8:].count(b"data: {")
            received = bytearray((received + part)[-64:])
        assert events == count


COLLECTED = {
    "/v1/completions": {"prompt": str(FLOODING)},
    "/v1/responses": {"input": str(FLOODING)},
}


@pytest.mark.endurance
@pytest.mark.parametrize("path", COLLECTED)
def test_whole_responses_without_end_are_errors_at_the_memory_limit(models: Path, tmp_path: Path, path: str) -> None:
    template = models.with_name(f"{models.name}.jinja")
    template.write_text("{{ messages[0]['content'] }}")
    options = [f"--openai-port={free_ports(1)[0]}", f"--openai-chat-template={template}"]
    with attacked_server(models, *options, "--memory-limit-requests=256MiB", work=tmp_path / "server") as server:
        assert server.post("/v2/models/flood/generate_stream", {"COUNT": 1}).status == 200
        with harmless(server, (256 << 20) + GROWTH), ExitStack() as stack:
            clients = [stack.enter_context(connected(openai_port(server))) for _ in range(2)]
            for client in clients:
                client.sendall(post(path, model="flood", **COLLECTED[path]))
            for client in clients:
                answer = client.recv(1 << 16)
                assert answer.startswith(b"HTTP/1.1 503"), answer
                assert b"cannot collect the response: " in answer
            # The model handles the next request when it has done with these.
            assert server.post("/v2/models/flood/generate_stream", {"COUNT": 1}).status == 200
