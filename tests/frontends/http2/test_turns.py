"""What is written and read in one turn of the loop.

Frames of one turn are one write, which costs as much as making a short response. Long messages are sent and received for
a share of a turn, also where client and kernel take and bring any number of bytes.
"""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from frontends.http2.echo import Echo
from frontends.http2.peer import REQUEST
from hpack import Encoder
from support.waiting import until_async

from naiad.core.turns import LoopTurns
from naiad.frontends.http2 import connection, frames, sender
from naiad.frontends.http2.frames import Setting
from naiad.frontends.http2.keepalive import KeepaliveSettings
from naiad.frontends.http2.limits import Http2Limits, StreamCount
from naiad.frontends.http2.stream import Stream
from naiad.frontends.open_connections import OpenConnections
from naiad.frontends.request_budget import RequestBudget

HOLD = tuple((name, "/hold" if name == ":path" else value) for name, value in REQUEST)
FLOW = tuple((name, "/flow" if name == ":path" else value) for name, value in REQUEST)


class Counted:
    """A transport that counts its writes."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(sum(map(len, parts)))
        self._transport.writelines(parts)


def count(server: Any) -> Counted:
    """Have the only connection of a server write to a counting transport."""
    [connection] = server.connections
    connection.writer.transport = counted = Counted(connection.writer.transport)
    return counted


def held(server: Any, peer: Any, *contents: bytes) -> list[int]:
    """Streams whose responses wait for `release`."""
    streams = list(range(1, 2 * len(contents), 2))
    for stream, content in zip(streams, contents, strict=True):
        peer.request(stream, fields=HOLD)
        peer.data(stream, content, ends=True)
    assert peer.is_alive()
    return streams


def test_responses_of_one_turn_of_the_loop_are_one_write(server, peer):
    streams = held(server, peer, *(b"%d" % index for index in range(8)))
    counted = count(server)
    server.release()
    assert [peer.response(stream)[1] for stream in streams] == [b"%d" % index for index in range(8)]
    assert len(counted.writes) == 1


def test_separate_writes_keep_their_order_among_joined_ones(server, connect):
    """Long responses and control frames are written separately."""
    peer = connect(server, preface=frames.PREFACE + frames.settings([(Setting.MAX_FRAME_SIZE, 1 << 20)]))
    peer.send(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 20)]), frames.window_update(0, 1 << 20))
    streams = held(server, peer, b"short", b"x" * 100_000, b"last")
    counted = count(server)

    def release() -> None:
        for handler in server.handlers:
            handler.respond()
            handler.stream.controller.ping(b"%08d" % handler.stream.number)

    server.loop.call(release)
    order = [peer.read() for _ in range(4 * len(streams))]
    assert [frame.payload for frame in order if frame.kind == frames.PING] == [b"%08d" % stream for stream in streams]
    assert [frame.stream or "ping" for frame in order] == [1, 1, 1, "ping", 3, 3, 3, "ping", 5, 5, 5, "ping"]
    # The short response and the ping behind it are one write. After the long one, no other stream was open to join.
    assert len(counted.writes) == 5


def test_messages_of_a_stream_are_written_together_and_before_its_end(server, peer):
    peer.request(1, fields=FLOW)
    assert peer.is_alive()
    counted = count(server)
    peer.send(
        *(frames.frame(frames.DATA, 0, 1, b"%d" % index) for index in range(5)),
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"!"),
    )
    assert peer.response(1)[1:] == (b"01234!", {"x-done": "yes"})
    assert len(counted.writes) <= 2


@pytest.fixture
def smallest_share(monkeypatch):
    """A share is used up by the first piece of work."""
    monkeypatch.setattr(sender, "SHARE_SECONDS", 0)


class Endless:
    """A transport that takes everything at once, as the kernel does for a client that reads as fast."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass


@pytest.mark.usefixtures("smallest_share")
def test_a_long_message_is_sent_in_turns_and_what_is_queued_meanwhile_takes_part():
    transport = Endless()
    deferred: list[Any] = []
    budget = RequestBudget()
    writer = sender.FrameWriter(SimpleNamespace(call_soon=lambda _: None), budget)
    writer.open(transport)
    sends = sender.Sender(writer, {}, lambda _: None, deferred.append, budget)
    sends.flow.window = 1 << 30
    first, second = (Stream(number, None, sends, 1 << 30, 0) for number in (1, 3))
    sends.send_data(first, [bytes(4 << 20)], 4 << 20, None)
    sent = len(transport.written)
    assert 0 < sent < 1 << 20, "as much as a share allows"
    sends.send_data(second, [bytes(1 << 20)], 1 << 20, None)
    sends.on_window_update(1)
    assert len(transport.written) == sent, "the rest of the turn is for others"
    turns = 0
    while deferred:
        assert len(deferred) == 1
        before = len(transport.written)
        deferred.pop()()
        assert len(transport.written) - before < 1 << 20
        turns += 1
        if turns == 2:
            assert second.unsent_data.size < 1 << 20, "the second stream has its turn before the end of the first"
    assert not first.unsent_data
    assert not second.unsent_data
    assert turns > 4


class Unread(Endless):
    """A transport whose socket has any number of bytes to read.

    Attributes:
        is_read: Whether it is read.
    """

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def test_long_frames_are_read_for_a_share_of_a_turn(monkeypatch):
    """libuv calls a protocol up to 32 times in a turn while its reads fill their buffers."""
    milliseconds = itertools.count()
    monkeypatch.setattr(connection, "perf_counter", lambda: next(milliseconds) / 1000)
    limits = Http2Limits()
    content = bytes(limits.frame_size)
    data = frames.frame(frames.DATA, 0, 1, content)

    async def reads() -> list[int]:
        handlers: list[Echo] = []

        class Application:
            def parse_head(self, head: Any) -> Any:
                return head

            def handle_request(self, stream: Stream, head: Any) -> Echo:
                handlers.append(Echo(stream, b"/hold"))
                return handlers[-1]

        loop = asyncio.get_running_loop()
        inbox = memoryview(bytearray(connection.READ_BUFFER_SIZE))
        turns = LoopTurns(loop)
        made = connection.Http2Connection(
            Application(), OpenConnections(), inbox, limits, KeepaliveSettings(), turns, StreamCount(limits)
        )
        transport = Unread()
        made.connection_made(transport)
        block = frames.headers(1, Encoder().encode(REQUEST), ends=False, max_frame_size=1 << 14)
        sent = frames.PREFACE + frames.settings(()) + block + data[:100]
        made.get_buffer(-1)[: len(sent)] = sent
        made.buffer_updated(len(sent))
        counts: list[int] = []
        position = 100
        while len(counts) < 3:
            await until_async(lambda: transport.is_read)
            counts.append(0)
            while transport.is_read:  # as libuv, but without end
                buffer = made.get_buffer(-1)[: 1 << 16]
                position += len(buffer)
                made.buffer_updated(len(buffer))
                counts[-1] += 1
        assert handlers[0].direct == position - 100
        made.connection_lost(None)
        return counts

    assert asyncio.run(reads()) == [3, 3, 3], "two milliseconds, a read of one each"
