"""Clients that ask for long responses with a few bytes, and do not read them: a memory of its own size bounds them."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator

import pytest
from attacks.clients import connected
from attacks.test_memory_budget import CALL
from attacks.watching import attacked_server, harmless
from frontends.http2.peer import Peer
from support.model_files import python_config, write_files
from support.server import ServerProcess
from support.waiting import until
from tritonclient.grpc import service_pb2

from naiad.frontends.http2 import frames

MIB = 1 << 20
LIMIT = 128 * MIB
SIZE = 16 * MIB
"""Bytes of a response: several times of what the kernel keeps for a connection."""
CLIENTS = 40
GROWTH = LIMIT + 3 * SIZE + 32 * MIB
"""What the server may grow by: the memory of requests, one response more, two that are being made, and the rest."""
MODEL = """
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def made(request):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(asked(request, "SIZE"), 7, np.uint8))])


def asked(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0])


class TritonPythonModel:
    def execute(self, requests):
"""
ONE = MODEL + "        return [made(request) for request in requests]\n"
MANY = (
    MODEL
    + """        for request in requests:
            threading.Thread(target=send, args=(request, request.get_response_sender())).start()


def send(request, sender):
    for _ in range(asked(request, "COUNT")):
        if sender.is_cancelled():
            break
        sender.send(made(request))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
"""A thread for each request: else the first client that does not read would hold back the model."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one process"), pytest.param(2, id="2 processes", marks=pytest.mark.endurance)],
)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server whose model `long` responds once, and whose model `stream` does so as often as it is asked to."""
    root, work = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("server")
    for name, code in (("long", ONE), ("stream", MANY)):
        policy = "model_transaction_policy { decoupled: true }\n" if code is MANY else ""
        write_files(root, name, python_config("SIZE INT32 1,COUNT INT32 1 optional", "OUT UINT8 -1", policy), code)
    flags = (f"--processes={request.param}", f"--memory-limit-requests={request.param * LIMIT}")
    with attacked_server(root, *flags, work=work) as started:
        for _ in range(16 if started.others() else 1):
            assert ask(started, 1).status == 200
        yield started


def document(size: int) -> dict[str, object]:
    """A request for a response with *size* bytes."""
    return {
        "inputs": [{"name": "SIZE", "datatype": "INT32", "shape": [1], "data": [size]}],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
    }


def ask(server: ServerProcess, size: int):
    return server.post("/v2/models/long/infer", document(size))


def request_of(path: str, body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def message_of(model: str, **values: int) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in values.items():
        request.inputs.add(name=name, datatype="INT32", shape=[1])
        request.raw_input_contents.append(struct.pack("<i", value))
    message = request.SerializeToString()
    return struct.pack(">BL", 0, len(message)) + message


def metric(server: ServerProcess, name: str) -> float:
    (value,) = server.samples(f"{name} ").values()
    return value


def dropped(server: ServerProcess, reason: str) -> float:
    return metric(server, f'naiad_unread_responses_dropped_total{{reason="{reason}"}}')


def unread(server: ServerProcess) -> float:
    return metric(server, "naiad_request_memory_unread_bytes")


def assert_that_others_are_served(server: ServerProcess) -> None:
    """Short responses at once, long ones when the first of those that do not read were disconnected."""
    assert ask(server, 1000).status == 200
    until(lambda: ask(server, SIZE).status == 200, "a client that reads to be served", 120)


def bound(server: ServerProcess) -> int:
    """What unread responses may use in all processes."""
    return len(server.serving()) * (LIMIT + SIZE)


@contextlib.contextmanager
def attacked(server: ServerProcess) -> Iterator[None]:
    """The block makes clients that do not read, which have left at its end; memory stays bounded meanwhile."""
    with harmless(server) as seen:
        yield
        assert unread(server) <= bound(server)
    count = len(server.serving())
    # What passed between processes stays resident in their segments for a while, when its memory is free for others.
    seen.assert_memory(count * GROWTH + (count - 1) * LIMIT)
    until(lambda: metric(server, "naiad_request_memory_used_bytes") == 0, "the memory to be free")


def test_calls_of_one_connection_that_opens_no_window(server: ServerProcess) -> None:
    """40 calls of 60 bytes each held all of their responses, without a time limit."""
    slow = dropped(server, "slow")
    with attacked(server), contextlib.closing(Peer(server.grpc_port)) as peer:
        for stream in range(1, 2 * CLIENTS, 2):
            peer.request(stream, fields=CALL)
            peer.data(stream, message_of("long", SIZE=SIZE), ends=True)
        until(lambda: dropped(server, "full") > 0, "the memory to be full", 120)
        until(lambda: dropped(server, "slow") > slow, "a slow client to be disconnected", 120)
        assert_that_others_are_served(server)
        assert peer.until(frames.RST_STREAM).number == frames.ErrorCode.ENHANCE_YOUR_CALM
    assert (
        "disconnected a client that reads its response too slowly: " in server.log or "cannot send a resp" in server.log
    )


def test_connections_of_http_that_read_a_few_bytes(server: ServerProcess) -> None:
    slow = dropped(server, "slow")
    with attacked(server), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(server.http_port)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(request_of("/v2/models/long/infer", document(SIZE)))
        statuses = [client.recv(15).split(b" ")[1] for client in clients]
        assert set(statuses) == {b"200", b"503"}
        until(lambda: dropped(server, "slow") > slow, "a slow client to be disconnected", 120)
        assert_that_others_are_served(server)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_streams_that_are_not_read(server: ServerProcess, protocol: str) -> None:
    """What waits for 40 of them is more than all requests may use together."""
    slow = dropped(server, "slow")
    body = {"SIZE": 8000, "COUNT": 3000}  # events of 16 KB; up to 1,024 may wait for a client
    with attacked(server), contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            if protocol == "http":
                client: socket.socket = stack.enter_context(connected(server.http_port))
                client.sendall(request_of("/v2/models/stream/generate_stream", body))
            else:
                peer = stack.enter_context(contextlib.closing(Peer(server.grpc_port)))
                path = (":path", "/inference.GRPCInferenceService/ModelStreamInfer")
                peer.request(1, fields=[path if name == ":path" else (name, value) for name, value in CALL])
                peer.data(1, message_of("stream", **body))
        until(lambda: dropped(server, "slow") > slow, "a slow client to be disconnected", 120)
        assert_that_others_are_served(server)
