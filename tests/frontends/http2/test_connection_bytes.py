"""A connection without a socket: bytes cut anywhere go in, and what the application sees and the client gets is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hpack
import pytest
from fakes.clock import Clock
from fakes.connections import Transport
from frontends.http2.peer import REQUEST

from naiad.core.turns import LoopTurns
from naiad.frontends.http2 import connection as module
from naiad.frontends.http2 import frame_reader, frames, sender
from naiad.frontends.http2.connection import READ_BUFFER_SIZE, Http2Connection
from naiad.frontends.http2.frames import ErrorCode, Setting
from naiad.frontends.http2.keepalive import KeepaliveSettings
from naiad.frontends.http2.limits import Http2Limits, StreamCount
from naiad.frontends.open_connections import ConnectionCount, OpenConnections

PREFACE = frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 20)])


@pytest.fixture(autouse=True)
def _lasting_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives is handled in one turn, however long the machine lets this process wait meanwhile."""
    for each in (module, frame_reader, sender):
        monkeypatch.setattr(each, "SHARE_SECONDS", 60.0)


class Handler:
    """One request, answered when it is complete if its path is /echo.

    Attributes:
        events: Its content in the pieces that came, and its end.
    """

    def __init__(self, stream: Any, path: bytes) -> None:
        self.stream, self.path = stream, path
        self.content, self.ends, self.cancelled, self.direct = b"", 0, 0, 0
        self.marks: list[Any] = []
        self._room = bytearray()

    def on_data(self, data: Any, start: int, end: int, ended: bool) -> None:
        assert 0 <= start <= end <= len(data)
        assert not self.ends
        self.content += bytes(data[start:end])
        if ended:
            self.ends += 1
            if self.path == b"/echo":
                self.respond()

    def respond(self) -> None:
        fields = ((b":status", b"200"),)
        self.stream.sender.send_response(self.stream, fields, [self.content], len(self.content), ((b"x", b"y"),))

    def get_buffer(self, size: int) -> memoryview | None:
        if self.path == b"/copied":
            return None
        self._room = bytearray(size)
        return memoryview(self._room)

    def buffer_updated(self, size: int) -> None:
        self.direct += size
        self.content += bytes(self._room[:size])

    def on_sent(self, marker: Any) -> None:
        self.marks.append(marker)

    def on_cancel(self) -> None:
        self.cancelled += 1


class Wire:
    """A connection of a client, and its server."""

    def __init__(
        self, limits: Http2Limits | None = None, count: ConnectionCount | None = None, **keepalive: float
    ) -> None:
        self.limits = limits or Http2Limits()
        self.handlers: list[Handler] = []
        self.connections: OpenConnections[Any] = OpenConnections(count)
        self.streams = StreamCount(self.limits)
        self.settings = KeepaliveSettings(**{"max_ping_strikes": 0, **keepalive})
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.connection, self.transport = self.connect()
        self._read = 0

    def connect(self, transport: Transport | None = None) -> tuple[Any, Transport]:
        loop = asyncio.get_running_loop()
        inbox = memoryview(bytearray(READ_BUFFER_SIZE))
        made = Http2Connection(self, self.connections, inbox, self.limits, self.settings, LoopTurns(loop), self.streams)
        transport = transport or Transport()
        made.connection_made(transport)  # type: ignore[arg-type] # a fake
        return made, transport

    def parse_head(self, head: Any) -> Any:
        return head

    def handle_request(self, stream: Any, head: Any) -> Handler | None:
        if head.path == b"/refused":
            stream.sender.send_response(stream, ((b":status", b"404"),), [], 0, ())
            return None
        self.handlers.append(Handler(stream, head.path))
        return self.handlers[-1]

    def block(self, path: str = "/echo", *more: tuple[str, str]) -> bytes:
        return self.encoder.encode([(name, path if name == ":path" else value) for name, value in (*REQUEST, *more)])

    def receive(self, *data: bytes, size: int = 1 << 30) -> None:
        """The socket delivers bytes, at most *size* at once."""
        whole = b"".join(data)
        while whole:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(whole), size)
            room[:count] = whole[:count]
            self.connection.buffer_updated(count)
            whole = whole[count:]

    def sent(self) -> list[tuple[Any, ...]]:
        """The frames that were written since the last call: kind, stream, and what they say."""
        found = []
        data = self.transport.written
        while self._read < len(data):
            high, low, kind, flags, stream = frames.HEAD.unpack_from(data, self._read)
            start = self._read + frames.HEAD_SIZE
            self._read = start + (high << 8 | low)
            payload = data[start : self._read]
            what: Any = payload
            if kind == frames.HEADERS:
                what = tuple(self.decoder.decode(payload))
            elif kind in {frames.RST_STREAM, frames.WINDOW_UPDATE}:
                what = int.from_bytes(payload, "big")
            elif kind == frames.GOAWAY:
                what = (int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big"), payload[8:].decode())
            found.append((kind, stream, what, flags))
        return found


@pytest.fixture
def run_coroutine():
    return Clock().run


async def turn() -> None:
    """Let the loop do all that is ready: only then its time passes."""
    await asyncio.sleep(0.001)


# -- bytes cut anywhere


def script(wire: Wire) -> list[bytes]:
    """Requests of all kinds."""
    long = bytes(range(256)) * 400
    return [
        PREFACE,
        frames.headers(1, wire.block("/echo", ("content-length", "3")), ends=False),
        frames.frame(frames.DATA, 0, 1, b"ab"),
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"c"),
        frames.headers(3, wire.block(), ends=True),
        frames.headers(5, wire.block("/copied"), ends=False),
        frames.headers(7, wire.block(), ends=False),
        frames.frame(frames.DATA, 0, 5, long),
        frames.ping(b"12345678"),
        frames.frame(frames.DATA, frames.END_STREAM, 7, long),
        frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 5, wire.encoder.encode([("t", "x")])),
        frames.headers(9, wire.block("/hold"), ends=False),
        frames.reset(9, ErrorCode.CANCEL),
        frames.headers(11, wire.block("/echo", ("content-length", "1")), ends=True),
        frames.frame(frames.DATA, 0, 11, b"late, on a stream that was reset"),
        frames.headers(13, wire.block("/refused"), ends=True),
        frames.window_update(0, 1 << 20),
    ]


async def outcome(sizes: Callable[[bytes], list[bytes]], size: int = 1 << 30) -> Any:
    wire = Wire()
    for piece in sizes(b"".join(script(wire))):
        wire.receive(piece, size=size)
        await turn()
    await asyncio.sleep(0.1)
    handlers = [(each.path, each.content, each.ends, each.cancelled) for each in wire.handlers]
    by_stream: dict[int, list[Any]] = {}
    for kind, stream, what, flags in wire.sent():
        before = by_stream.setdefault(stream, [])
        joined = before.pop()[1] + what if kind == frames.DATA and before[-1][0] == frames.DATA else what
        before += [(kind, joined, flags)] if kind != frames.WINDOW_UPDATE else []
    return handlers, by_stream, wire.streams.open, list(wire.connection.open_streams)


async def test_a_connection_does_the_same_wherever_its_bytes_are_cut():
    long = bytes(range(256)) * 400
    whole = await outcome(lambda data: [data])
    assert whole[0] == [
        (b"/echo", b"abc", 1, 0),
        (b"/echo", b"", 1, 0),
        (b"/copied", long, 1, 0),
        (b"/echo", long, 1, 0),
        (b"/hold", b"", 0, 1),
    ]
    answers = whole[1]
    assert [kind for kind, *_ in answers[0]] == [frames.SETTINGS, frames.SETTINGS, frames.PING]
    assert [kind for kind, *_ in answers[1]] == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert answers[7][1][1] == long
    assert answers[11] == [(frames.RST_STREAM, ErrorCode.PROTOCOL_ERROR, 0)]
    assert [kind for kind, *_ in answers[13]] == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert (whole[2], whole[3]) == (1, [5])
    for size in (1 << 10, 9_001, 40_000, 70_000):
        assert await outcome(lambda data: [data], size) == whole
    data = b"".join(script(Wire()))
    for cut in (*range(400), *range(len(data) - 260, len(data))):
        assert await outcome(lambda data, cut=cut: [data[:cut], data[cut:]]) == whole


async def test_a_long_frame_is_read_into_the_memory_of_its_request_and_of_no_other():
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=False))
    wire.receive(frames.headers(3, wire.block("/hold"), ends=False))
    wire.receive(frames.frame(frames.DATA, 0, 1, b"x" * 199_991), size=50_000)
    first, second = wire.handlers
    assert first.content == b"x" * 199_991
    assert first.direct == 150_000
    assert len(wire.connection.get_buffer(-1)) == 1 << 14, "the head of the next frame, and little of its content"
    assert len(wire.connection.get_buffer(-1)) == READ_BUFFER_SIZE
    # A stream that was reset: its data goes nowhere.
    wire.connection.reset_stream(second.stream, ErrorCode.CANCEL)
    wire.receive(frames.frame(frames.DATA, 0, 3, b"y" * 200_000), size=50_000)
    assert (len(first.content), second.content) == (199_991, b"")
    # One that is reset amid its frame.
    head = frames.head(frames.DATA, frames.END_STREAM, 1, 200_000)
    wire.receive(head, b"z" * 50_000)
    assert first.content[199_991:] == b"z" * 50_000
    wire.connection.reset_stream(first.stream, ErrorCode.CANCEL)
    wire.receive(b"z" * 150_000)
    wire.receive(frames.ping(b"12345678"))
    assert (len(first.content), first.ends) == (249_991, 0)
    assert wire.sent()[-1][0] == frames.PING


async def test_a_request_that_ends_with_a_long_frame_is_complete_once():
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=False))
    wire.receive(frames.frame(frames.DATA, frames.END_STREAM, 1, b"x" * 100_000), size=30_000)
    (handler,) = wire.handlers
    assert (len(handler.content), handler.ends) == (100_000, 1)
    assert len(wire.connection.get_buffer(-1)) == READ_BUFFER_SIZE


# -- what is refused


@pytest.mark.parametrize(("said", "is_answered"), [("0", True), ("1", False)])
async def test_a_request_without_content_must_not_announce_any(said, is_answered):
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/echo", ("content-length", said)), ends=True))
    await turn()
    kinds = [kind for kind, stream, *_ in wire.sent() if stream == 1]
    assert kinds == ([frames.HEADERS, frames.DATA, frames.HEADERS] if is_answered else [frames.RST_STREAM])
    assert wire.streams.open == 0


async def test_only_so_many_streams_are_open_and_those_beyond_are_refused_alone():
    wire = Wire(Http2Limits(streams=2))
    wire.receive(PREFACE, *(frames.headers(number, wire.block("/hold"), ends=True) for number in (1, 3, 5)))
    assert [each[:3] for each in wire.sent() if each[1]] == [(frames.RST_STREAM, 5, ErrorCode.REFUSED_STREAM)]
    assert (wire.connection.open_streams, wire.streams.open) == ({1, 3}, 2)
    wire.receive(frames.reset(1, ErrorCode.CANCEL), frames.headers(7, wire.block("/hold"), ends=True))
    assert (wire.connection.open_streams, wire.streams.open, wire.connection.last_stream) == ({3, 7}, 2, 7)
    assert [each.cancelled for each in wire.handlers] == [1, 0, 0]
    wire.sent()
    wire.handlers[0].respond()
    await turn()
    assert wire.sent() == [], "its stream has ended"
    wire.connection.connection_lost(None)
    assert [each.cancelled for each in wire.handlers] == [1, 1, 1]
    assert (wire.streams.open, len(wire.connections)) == (0, 0)


async def test_the_streams_that_were_reset_last_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "_MAX_RESET_STREAMS", 2)
    wire = Wire()
    wire.receive(PREFACE)
    for number in (1, 3, 5):
        wire.receive(frames.headers(number, wire.block("/hold"), ends=False))
        wire.connection.reset_stream(wire.handlers[-1].stream, ErrorCode.CANCEL)
    wire.sent()
    for number, expected in ((3, []), (5, []), (1, [(frames.RST_STREAM, 1, ErrorCode.STREAM_CLOSED)])):
        wire.receive(frames.frame(frames.DATA, 0, number, b"late"))
        assert [each[:3] for each in wire.sent()] == expected
    wire.receive(frames.window_update(1, 1), frames.reset(1, ErrorCode.CANCEL))
    assert wire.sent() == []


async def test_an_unexpected_error_ends_the_connection_without_its_details(caplog):
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=False))
    wire.handlers[0].on_data = lambda *_: 1 / 0
    wire.receive(frames.frame(frames.DATA, 0, 1, b"x"))
    assert wire.sent()[-1][2] == (1, ErrorCode.INTERNAL_ERROR, "internal error")
    assert wire.handlers[0].cancelled == 1
    wire.receive(frames.ping(b"12345678"))
    assert wire.sent() == []
    assert wire.transport.ends == ["write_eof"]
    await asyncio.sleep(1.1)
    assert wire.transport.ends == ["write_eof", "abort"]
    assert "unexpected error" in caplog.records[0].getMessage()


async def test_a_connection_beyond_the_limit_is_told_why():
    wire = Wire(count=ConnectionCount(total=1))
    wire.connection, wire.transport = wire.connect()
    found = wire.sent()
    assert [each[0] for each in found] == [frames.SETTINGS, frames.WINDOW_UPDATE, frames.GOAWAY]
    assert found[2][2][1] == ErrorCode.ENHANCE_YOUR_CALM
    await asyncio.sleep(1.1)
    assert wire.transport.ends == ["write_eof", "abort"]


async def test_a_client_of_tls_that_does_not_offer_h2_gets_an_answer_of_http_1():
    wire = Wire()
    transport = Transport()
    transport.protocol = "http/1.1"
    wire.connection, _ = wire.connect(transport)
    assert transport.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    wire.receive(PREFACE)
    assert b"PRI" not in transport.written
    assert not wire.connection.has_preface


# -- time


async def test_a_client_has_a_limited_time_for_its_preface():
    wire, other = Wire(Http2Limits(handshake_seconds=5)), Wire(Http2Limits(handshake_seconds=5))
    other.receive(PREFACE)
    wire.receive(frames.PREFACE)
    await asyncio.sleep(4.9)
    assert wire.transport.ends == []
    await asyncio.sleep(0.2)
    assert (wire.transport.ends, other.transport.ends) == (["abort"], [])


async def test_a_connection_that_drains_serves_what_was_sent_before_its_client_knew():
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=True))
    wire.sent()
    wire.connection.drain()
    found = wire.sent()
    assert [each[0] for each in found] == [frames.GOAWAY, frames.PING]
    assert found[0][2] == (frames.MAX_STREAM, ErrorCode.NO_ERROR, "")
    assert not wire.connection.is_drained
    wire.receive(frames.headers(3, wire.block("/hold"), ends=True))
    wire.receive(frames.ping(found[1][2], is_ack=True))
    assert wire.sent()[-1][2] == (3, ErrorCode.NO_ERROR, "")
    assert wire.connection.is_drained
    wire.receive(frames.headers(5, wire.block("/hold"), ends=True))
    assert wire.sent()[-1][:3] == (frames.RST_STREAM, 5, ErrorCode.REFUSED_STREAM)
    for handler in wire.handlers:
        assert wire.transport.ends == []
        handler.respond()
        await turn()
    assert wire.transport.ends == ["write_eof"]
    await asyncio.sleep(1.1)
    assert wire.transport.ends == ["write_eof", "close"]


async def test_an_error_after_a_drain_names_no_later_stream():
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=True))
    wire.connection.announce_shutdown(is_final=True)
    wire.receive(frames.headers(3, wire.block("/hold"), ends=True))
    wire.receive(frames.window_update(0, 0))
    assert wire.sent()[-1][2][:2] == (1, ErrorCode.PROTOCOL_ERROR)


# -- back-pressure


async def test_a_client_that_does_not_read_is_not_read_from():
    wire = Wire(Http2Limits(unsent=1000))
    wire.receive(PREFACE)
    wire.transport.unsent = 1001
    wire.receive(frames.ping(b"12345678"))
    assert wire.transport.is_reading, "its transport has room"
    wire.connection.pause_writing()
    wire.transport.unsent = 1000
    wire.receive(frames.ping(b"12345678"))
    assert (wire.transport.is_reading, wire.connection.is_reading) == (True, True)
    wire.transport.unsent = 1001
    wire.receive(frames.ping(b"12345678"))
    assert (wire.transport.is_reading, wire.connection.is_reading) == (False, False)
    wire.connection.resume_writing()
    assert (wire.transport.is_reading, wire.connection.is_reading) == (True, True)


async def test_a_read_that_fills_the_buffer_leaves_the_next_turn_to_others():
    wire = Wire()
    ignored = frames.frame(0x77, 0, 0, bytes(16_000)) * 17
    wire.receive(PREFACE)
    room = wire.connection.get_buffer(-1)
    room[:] = ignored[: len(room)]
    wire.connection.buffer_updated(len(room))
    assert not wire.transport.is_reading
    await asyncio.sleep(0.5)
    assert wire.transport.is_reading


async def test_work_that_calls_put_off_is_done_in_later_turns_and_not_after_the_end():
    wire = Wire()
    wire.receive(PREFACE)
    done: list[int] = []
    for number in range(3):
        wire.connection.defer(lambda number=number: done.append(number))
    assert (done, wire.transport.is_reading) == ([], False)
    await turn()
    assert (done, wire.transport.is_reading) == ([0, 1, 2], True)
    wire.connection.defer(lambda: 1 / 0)
    await turn()
    assert wire.sent()[-1][2][1] == ErrorCode.INTERNAL_ERROR
    wire.connection.defer(lambda: done.append(9))
    wire.connection.connection_lost(None)
    await turn()
    assert done == [0, 1, 2]


async def test_a_stream_that_pauses_gets_no_window_until_it_continues():
    wire = Wire(Http2Limits(stream_window=1000, window=1 << 20))
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=False))
    (handler,) = wire.handlers
    wire.connection.pause_stream(handler.stream)
    wire.receive(frames.frame(frames.DATA, 0, 1, b"x" * 900))
    assert [each for each in wire.sent() if each[0] == frames.WINDOW_UPDATE and each[1]] == []
    wire.connection.resume_stream(handler.stream)
    assert [each[:3] for each in wire.sent()] == [(frames.WINDOW_UPDATE, 1, 900)]
    wire.connection.resume_stream(handler.stream)
    handler.stream.close()
    wire.connection.pause_stream(handler.stream)
    wire.connection.resume_stream(handler.stream)
    assert wire.sent() == []


async def test_a_response_before_the_end_of_its_request_asks_the_client_to_stop():
    wire = Wire()
    wire.receive(PREFACE, frames.headers(1, wire.block("/hold"), ends=False))
    wire.handlers[0].respond()
    await turn()
    assert wire.sent()[-1][:3] == (frames.RST_STREAM, 1, ErrorCode.NO_ERROR)
    assert wire.streams.open == 0
    wire.receive(frames.frame(frames.DATA, frames.END_STREAM, 1, b"late"))
    assert wire.sent() == []
