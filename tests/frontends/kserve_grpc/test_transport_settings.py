"""Settings of the transport, observed on a bare HTTP/2 connection: grpcio's client hides pings."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import NamedTuple

import pytest

from naiad.frontends.grpc.settings import GrpcSettings

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
ENHANCE_YOUR_CALM = 11
PAYLOAD = b"12345678"


class Frame(NamedTuple):
    kind: int
    flags: int
    payload: bytes


class Connection:
    """An HTTP/2 connection that acknowledges nothing by itself."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(PREFACE)
        self.send(SETTINGS)

    def send(self, kind, payload=b"", flags=0):
        head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, 0)
        self._socket.sendall(head + payload)

    def read(self):
        head = self._file.read(9)
        if len(head) < 9:
            return None
        return Frame(head[3], head[4], self._file.read(int.from_bytes(head[:3], "big")))

    def read_until(self, wanted):
        """The first frame of that type; None if the connection ends before."""
        while True:
            frame = self.read()
            if frame is None or wanted(frame):
                return frame

    def close(self):
        self._file.close()
        self._socket.close()


@pytest.fixture
def connect(serve):
    with contextlib.ExitStack() as stack:

        def connect(**settings):
            served = serve(settings=GrpcSettings(**settings))
            return stack.enter_context(contextlib.closing(Connection(served.port)))

        yield connect


def test_the_shortest_keepalive_time_is_a_millisecond():
    assert GrpcSettings(keepalive_time_ms=0).keepalive().keepalive_time == 0.001


def test_silence_leads_to_a_ping_and_then_to_the_end_of_the_connection(connect):
    connection = connect(keepalive_time_ms=1000, keepalive_timeout_ms=200, keepalive_permit_without_calls=True)
    assert connection.read_until(lambda frame: frame.kind == PING and not frame.flags & ACK) is not None
    assert connection.read_until(lambda frame: False) is None


def test_too_many_pings_end_the_connection(connect):
    connection = connect(http2_max_ping_strikes=1)
    for _ in range(4):
        connection.send(PING, PAYLOAD)
    away = connection.read_until(lambda frame: frame.kind == GOAWAY)
    assert int.from_bytes(away.payload[4:8], "big") == ENHANCE_YOUR_CALM
    assert b"too_many_pings" in away.payload


@pytest.mark.parametrize(
    "settings", [{"http2_max_ping_strikes": 0}, {"http2_min_recv_ping_interval_without_data_ms": 0}]
)
def test_pings_may_be_allowed(connect, settings):
    connection = connect(keepalive_permit_without_calls=True, **settings)
    for number in range(20):
        payload = struct.pack(">Q", number)
        connection.send(PING, payload)
        answer = connection.read_until(lambda frame, payload=payload: frame.kind == GOAWAY or frame.payload == payload)
        assert answer == (PING, ACK, payload)
