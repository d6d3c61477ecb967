"""What a server does from the signal to its end: no request is lost that was sent before its client could know."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from serving.repositories import document, repository
from support.server import HOST, ServerProcess
from support.waiting import until

_INFER = json.dumps(document(1.0)).encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
INFER = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_INFER),
    _INFER,
)


@pytest.fixture
def models(tmp_path):
    return repository(tmp_path / "models", ["identity"])


class Client:
    """A plain connection that a client keeps."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=60)
        self._received = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> tuple[int, str]:
        """Status and Connection header of the next response."""
        status = int(self._received.readline().split()[1])
        headers = {}
        while (line := self._received.readline().strip()) != b"":
            name, _, value = line.partition(b": ")
            headers[name.lower()] = value
        self._received.read(int(headers[b"content-length"]))
        return status, headers.get(b"connection", b"").decode()

    def is_at_end(self) -> bool:
        return self._received.read(1) == b""

    def close(self) -> None:
        self._received.close()
        self.socket.close()


@contextlib.contextmanager
def connected(server: ServerProcess) -> Iterator[Client]:
    with contextlib.closing(Client(server.http_port)) as client:
        client.send(LIVE)
        assert client.read() == (200, "")
        yield client


@contextlib.contextmanager
def suspended(server: ServerProcess) -> Iterator[None]:
    """What happens meanwhile has happened before the server does anything."""
    os.kill(server.pid, signal.SIGSTOP)
    yield
    os.kill(server.pid, signal.SIGCONT)


def connections_to(port: int) -> int:
    """Established TCP connections at a port of this machine, whether or not the server has accepted them."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(1 for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01")


@pytest.mark.parametrize("shared", ["false", "true"])
def test_requests_that_were_sent_before_the_signal_are_answered(models, tmp_path, shared):
    """In the buffer of a kept connection, and on one that the server has not accepted yet. They were reset."""
    with ServerProcess(models, f"--reuse-http-port={shared}", work=tmp_path) as server:
        with connected(server) as kept, connected(server) as idle, contextlib.ExitStack() as stack:
            with suspended(server):
                kept.send(INFER)
                new = [stack.enter_context(contextlib.closing(Client(server.http_port))) for _ in range(20)]
                for client in new:
                    client.send(INFER)
                os.kill(server.pid, signal.SIGTERM)
            for client in (kept, *new):
                assert client.read()[0] == 200
                assert client.is_at_end()
            assert idle.is_at_end()
        assert server.wait_exit() == 0


def test_calls_that_were_sent_before_the_signal_are_answered(models, tmp_path):
    with ServerProcess(models, "--reuse-grpc-port=true", work=tmp_path) as server:
        with contextlib.ExitStack() as stack:
            channels = [
                stack.enter_context(grpc.insecure_channel(server.grpc_url, [("grpc.use_local_subchannel_pool", 1)]))
                for _ in range(10)
            ]
            grpc.channel_ready_future(channels[0]).result(60)
            live = [
                channel.unary_unary("/inference.GRPCInferenceService/ServerLive", lambda _: b"", lambda data: data)
                for channel in channels
            ]
            with suspended(server):
                calls = [call.future(None, timeout=60, wait_for_ready=False) for call in live]
                # gRPC connects in threads of its own, which a loaded machine may delay until after the signal.
                until(lambda: connections_to(server.grpc_port) == len(channels), "all channels to be connected")
                os.kill(server.pid, signal.SIGTERM)
            assert [call.result() for call in calls] == [b"\x08\x01"] * 10
        assert server.wait_exit() == 0


def test_a_draining_server_is_not_ready_and_serves_on(models, tmp_path):
    with ServerProcess(models, "--drain-seconds=300", work=tmp_path) as server, connected(server) as kept:
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: server.get("/v2/health/ready").status == 400, "the server not to be ready")
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/models/identity/ready").status == 200
        kept.send(INFER)
        assert kept.read() == (200, "close")
        assert kept.is_at_end()
        with contextlib.closing(Client(server.http_port)) as new:
            new.send(INFER)
            assert new.read() == (200, "close")
        with triton.InferenceServerClient(server.grpc_url) as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
        os.kill(server.pid, signal.SIGTERM)  # ends the drain
        assert server.wait_exit() == 0
    assert "Not ready any more, and serving for 300 more seconds" in server.log


def test_a_drain_ends_by_itself(models, tmp_path):
    with ServerProcess(models, "--drain-seconds=1", work=tmp_path) as server, connected(server) as idle:
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_exit() == 0
        assert idle.is_at_end()
