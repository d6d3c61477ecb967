"""A server with 1 GB of memory, and clients that send more than that: it refuses some, and serves others."""

from __future__ import annotations

import contextlib
import gzip
import os
import select
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.clients import connected, send_until_refused
from attacks.conftest import warm_up
from attacks.floods import request_fields
from attacks.memory_limit import limited
from attacks.watching import attacked_server, harmless, watched
from frontends.http2.peer import Peer
from support.server import ServerProcess
from support.waiting import until

from naiad.frontends.http2 import frames

MIB = 1 << 20
_LIMIT = 1_000_000_000
_BUDGET = _LIMIT // 4
_BASE = 64 * MIB
"""What the server's memory may grow by besides requests."""
INFER = "/v2/models/bytes/infer"
CALL = request_fields("ModelInfer")


@pytest.fixture(scope="module")
def server(repository: Path, work: Path) -> Iterator[ServerProcess]:
    with (
        limited(_LIMIT) as prefix,
        attacked_server(repository, work=work, prefix=prefix, timeout=240) as started,
    ):
        warm_up(started)
        yield started


def bomb_of(count: int, *, is_gzip: bool = True) -> bytes:
    """*count* MiB of zeros, compressed. The checksum at the end is missing: nobody may get that far."""
    deflater = zlib.compressobj(9, wbits=-15)
    zeros = deflater.compress(bytes(MIB)) + deflater.flush(zlib.Z_FULL_FLUSH)
    return (gzip.compress(b"")[:10] if is_gzip else zlib.compress(b"")[:2]) + zeros * count


def send_what_is_read(connections: list[socket.socket], content: bytes) -> None:
    """Send *content* on all connections, until the server has closed them, or reads nothing more for a second."""
    rest = {connection: memoryview(content) for connection in connections}
    while rest:
        readable, writable, _ = select.select(list(rest), list(rest), [], 1)
        if not writable:
            return
        for connection in rest.keys() & {*readable, *writable}:
            try:
                if connection in readable and not connection.recv(1 << 20):
                    del rest[connection]
                elif connection in writable:
                    rest[connection] = rest[connection][connection.send(rest[connection][: 1 << 18]) :]
            except (BrokenPipeError, ConnectionResetError):
                del rest[connection]
            else:
                if connection in rest and not rest[connection]:
                    del rest[connection]


class Upload:
    """A connection that sends all but the end of a long message on each of some streams, as far as windows allow."""

    def __init__(self, port: int, *, streams: int, size: int) -> None:
        self.peer = Peer(port)
        self._windows = {0: (1 << 25) - 5 * streams}
        self._left = {}
        for number in range(1, 2 * streams, 2):
            self.peer.request(number, fields=CALL)
            self.peer.data(number, struct.pack(">BL", 0, size))
            self._windows[number] = (1 << 23) - 5
            self._left[number] = size - 1
        self._received = bytearray()

    def send(self) -> bool:
        """Send what may be sent; returns whether it was anything, or the server answered within a second."""
        has_sent = False
        for number, left in tuple(self._left.items()):
            size = min(left, self._windows[number], self._windows[0], MIB)
            if size > 0:
                has_sent = True
                self.peer.data(number, bytes(size))
                self._windows[0] -= size
                self._windows[number] -= size
                self._left[number] -= size
        return self._read(0 if has_sent else 1) or has_sent

    def _read(self, timeout: float) -> bool:
        if not self._left or not select.select([self.peer.socket], [], [], timeout)[0]:
            return False
        self._received += self.peer.socket.recv(1 << 20)
        while len(self._received) >= frames.HEAD_SIZE:
            high, low, kind, _, number = frames.HEAD.unpack_from(self._received)
            end = frames.HEAD_SIZE + (high << 8 | low)
            if len(self._received) < end:
                break
            if kind == frames.WINDOW_UPDATE:
                self._windows[number] += int.from_bytes(self._received[frames.HEAD_SIZE : end], "big")
            elif kind in {frames.HEADERS, frames.RST_STREAM}:
                self._left.pop(number, None)  # refused
            del self._received[:end]
        return True


def metric(server: ServerProcess, name: str) -> float:
    (value,) = server.samples(f"naiad_request_memory_{name} ").values()
    return value


def assert_memory_returned(server: ServerProcess, seen) -> None:
    """Nothing counts in the budget any more, and what the process keeps is given back within seconds."""
    until(lambda: metric(server, "used_bytes") == 0, "the budget to be free")

    def resident() -> int:
        text = Path(f"/proc/{server.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    until(lambda: resident() - seen.memory_before < 32 * MIB, "memory to be given back")


def test_default_of_the_budget_is_a_quarter_of_the_control_group(server: ServerProcess) -> None:
    assert metric(server, "limit_bytes") == pytest.approx(_BUDGET, rel=0.001)
    assert metric(server, "used_bytes") == metric(server, "stopped") == 0


@pytest.mark.parametrize("size", [1, pytest.param(6, marks=pytest.mark.endurance)])
def test_a_gzip_bomb_over_http_is_refused(server: ServerProcess, size: int) -> None:
    bomb = bomb_of(size << 10)
    with harmless(server, _BASE + _BUDGET) as seen:
        for _ in range(2):
            reply = server.post(INFER, bomb, headers={"Content-Encoding": "gzip"})
            assert reply.status == 400
            assert reply.error.startswith("cannot decompress the request body: its first ")
            assert reply.error.endswith("more than 100 times as many; send it uncompressed")
    assert_memory_returned(server, seen)


@pytest.mark.endurance
def test_deflate_bombs_of_many_clients_delay_no_request(server: ServerProcess) -> None:
    bomb = bomb_of(1 << 10, is_gzip=False)
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: deflate\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    with harmless(server, _BASE + _BUDGET) as seen, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server.http_port)) for _ in range(8)]
        for connection in connections:
            connection.sendall(head + bomb)
        for connection in connections:
            assert connection.recv(1 << 16).split(b" ")[1] in {b"400", b"503"}
    assert_memory_returned(server, seen)


@pytest.mark.endurance
def test_client_that_leaves_ends_its_decompression(server: ServerProcess) -> None:
    # Hardly compressible, so that only its size ends it.
    bomb = gzip.compress(os.urandom(1 << 15) * 1200, compresslevel=1)
    with harmless(server) as seen:
        for _ in range(6):
            with connected(server.http_port) as connection:
                head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
                connection.sendall(head.encode() + bomb)
    assert_memory_returned(server, seen)


def test_a_compressed_bomb_over_grpc_delays_no_request(server: ServerProcess) -> None:
    bomb = bomb_of(1 << 10)
    with harmless(server, _BASE + _BUDGET) as seen:
        peer = Peer(server.grpc_port)
        peer.request(1, fields=(*CALL, ("grpc-encoding", "gzip")))
        message = struct.pack(">BL", 1, len(bomb)) + bomb
        for start in range(0, len(message), MIB):
            peer.data(1, message[start : start + MIB], ends=start + MIB >= len(message))
        fields, _, _ = peer.response(1)
        assert fields["grpc-status"] == "13"
        assert "more than 100 times as many" in fields["grpc-message"]
        peer.close()
    assert_memory_returned(server, seen)


def test_server_ends_on_sigterm_while_it_decompresses(repository: Path, tmp_path: Path) -> None:
    bomb = gzip.compress(os.urandom(1 << 16) * 1000, compresslevel=1)
    with (
        contextlib.ExitStack() as stack,
        ServerProcess(repository, "--exit-timeout-secs=1", work=tmp_path) as started,
    ):
        warm_up(started)
        for _ in range(4):
            connection = stack.enter_context(connected(started.http_port))
            head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
            connection.sendall(head.encode() + bomb)
    assert "Traceback" not in started.log


@pytest.mark.endurance
def test_messages_that_do_not_end_are_refused_within_the_budget(server: ServerProcess) -> None:
    """2.5 GB in 40 messages: the budget is used, the largest are refused, and other requests are answered."""
    with watched(server) as seen:
        uploads = [Upload(server.grpc_port, streams=4, size=65 * MIB) for _ in range(10)]
        is_sending = True
        while is_sending:
            is_sending = max([upload.send() for upload in uploads])
        assert server.post(INFER, bytes(MIB), headers={"Inference-Header-Content-Length": "0"}).status == 200
        for upload in uploads:
            upload.peer.close()
    assert metric(server, "refused_total") > 0
    seen.assert_others_served()
    seen.assert_memory(_BASE + _BUDGET)
    assert_memory_returned(server, seen)


def test_bodies_that_do_not_end_are_refused_within_the_budget(server: ServerProcess) -> None:
    """Eight bodies of 200 MB that stop after 100: a request of others is served once the largest was refused."""
    # Frontend processes share the budget in equal parts.
    size = 200 * MIB // len(server.serving())
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
    refused = metric(server, "refused_total")
    with harmless(server, _BASE + _BUDGET) as seen, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server.http_port)) for _ in range(8)]
        send_what_is_read(connections, head + bytes(size // 2))
        until(lambda: metric(server, "refused_total") > refused, "the largest body to be refused")
        reply = server.post(INFER, bytes(MIB), headers={"Inference-Header-Content-Length": "0"})
        assert reply.status == 200
    assert_memory_returned(server, seen)


@pytest.mark.endurance
def test_ten_million_chunks_are_refused_within_the_budget(server: ServerProcess) -> None:
    chunks = b"2\r\nab\r\n" * 100_000
    with harmless(server, _BASE) as seen, connected(server.http_port) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        assert send_until_refused(connection, [chunks] * 100)
        until(lambda: metric(server, "used_bytes") >= 20_000_000, "all chunks to be read")
    assert_memory_returned(server, seen)


@pytest.mark.endurance
def test_long_requests_one_after_the_other_are_answered(server: ServerProcess) -> None:
    """Each is a quarter of the budget: what was answered must not count."""
    size = 64 * MIB
    head = (
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: 0\r\nContent-Length: {size}\r\n\r\n"
    ).encode()
    with watched(server) as seen, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server.http_port)) for _ in range(5)]
        statuses = []
        for connection in connections:
            connection.sendall(head)
            assert send_until_refused(connection, [bytes(MIB)] * 64)
            statuses.append(connection.recv(100).split(b" ")[1])
    assert statuses == [b"200"] * 5
    seen.assert_others_served()
    # They are not read to their end: what holds them in shared memory counts for the next test's server, too.
    assert_memory_returned(server, seen)
