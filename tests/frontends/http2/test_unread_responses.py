"""Responses of HTTP/2 that their clients do not read: what streams and connections count, and when that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.connections import SlowTransport

from naiad.frontends.http2 import sender
from naiad.frontends.http2.frames import ErrorCode
from naiad.frontends.http2.send_buffer import SendBuffer
from naiad.frontends.http2.sender import FrameWriter, Sender
from naiad.frontends.http2.stream import Stream
from naiad.frontends.request_budget import RequestBudget

MIB = 1 << 20
LIMIT = 8 * MIB
FIELDS = ((b":status", b"200"),)
LAST = ((b"x-done", b"yes"),)


class Handler:
    def __init__(self) -> None:
        self.sent: list[object] = []
        self.is_cancelled = False

    def on_sent(self, marker: object) -> None:
        self.sent.append(marker)

    def on_cancel(self) -> None:
        self.is_cancelled = True


class Connection:
    """The sending half of a connection, whose client opens *window* bytes and reads *room* of them."""

    def __init__(self, budget: RequestBudget, *, window: int = 0, room: int = 1 << 30) -> None:
        self.streams: dict[int, Stream] = {}
        self.resets: list[tuple[int, ErrorCode]] = []
        self.ready: list[Any] = []
        self.writer = FrameWriter(SimpleNamespace(call_soon=self.ready.append), budget)
        self.transport = SlowTransport(room)
        self.transport.writer = SimpleNamespace(pause_writing=self.writer.pause, resume_writing=self._resume)
        self.writer.open(self.transport)
        self.sender = Sender(self.writer, self.streams, self._on_response_sent, self.ready.append, budget)
        self.sender.flow.window = 1 << 30
        self.window = window

    def stream(self) -> Stream:
        number = 2 * len(self.streams) + 1
        stream = self.streams[number] = Stream(number, self, self.sender, self.window, 0)
        stream.handler = Handler()
        return stream

    def respond(self, size: int) -> Stream:
        stream = self.stream()
        self.sender.send_response(stream, FIELDS, [bytes(size)], size, LAST)
        self.run()
        return stream

    def open(self, stream: Stream, size: int) -> None:
        """The client opens the stream's window."""
        self.sender.on_stream_window_update(stream, size)
        self.run()

    def run(self) -> None:
        while self.ready:
            self.ready.pop(0)()

    @property
    def unsent(self) -> int:
        return self.writer.unsent

    def cancel_stream(self, stream: Stream, code: ErrorCode) -> None:
        self.resets.append((stream.number, code))
        handler = stream.handler
        stream.close()
        handler.on_cancel()

    def _resume(self) -> None:
        self.writer.resume()
        self.sender.send_queued()
        self.run()

    def _on_response_sent(self, stream: Stream) -> None:
        stream.close()


@pytest.fixture
def budget() -> RequestBudget:
    return RequestBudget(LIMIT)


@pytest.mark.parametrize("size", [100, 60_000, 3 * MIB])
def test_responses_that_are_sent_at_once_count_nothing(budget, size):
    connection = Connection(budget, window=4 * MIB)
    stream = connection.respond(size)
    assert not stream.is_open
    assert budget.in_use == 0


@pytest.mark.parametrize("size", [1 << 17, 3 * MIB])
def test_a_response_counts_until_its_client_has_opened_windows_for_all_of_it(budget, size):
    connection = Connection(budget, window=1000)
    stream = connection.respond(size)
    assert size < budget.in_use < size + 1000
    connection.open(stream, size - 2000)
    assert size < budget.in_use < size + 1000, "the rest of a tensor keeps all of its memory"
    connection.open(stream, 1000)
    assert not stream.is_open
    assert budget.in_use == 0


def test_a_short_response_behind_a_closed_window_counts_nothing(budget):
    connection = Connection(budget)
    assert connection.respond(60_000).is_open
    assert budget.in_use == 0


def test_nothing_counts_any_more_once_the_stream_is_closed(budget):
    connection = Connection(budget)
    connection.respond(MIB).close()
    assert budget.in_use == 0


def test_what_the_transport_has_counts_until_the_kernel_has_it(budget):
    connection = Connection(budget, window=4 * MIB, room=MIB)
    stream = connection.respond(3 * MIB)
    assert stream.is_open
    assert budget.in_use > 3 * MIB
    connection.transport.read(2 * MIB + 10_000)
    assert not stream.is_open
    assert budget.in_use == 0
    assert connection.transport.limits == (1 << 16, 0)


@pytest.mark.parametrize("share", [0.0, 60.0], ids=["a turn for each part", "one turn"])
@pytest.mark.parametrize("frame_size", [1 << 14, 1 << 23], ids=["in parts", "in one frame"])
def test_the_end_of_a_response_counts_although_the_transport_is_not_full(budget, monkeypatch, frame_size, share):
    monkeypatch.setattr(sender, "SHARE_SECONDS", share)
    size = 3 * MIB
    connection = Connection(budget, window=4 * MIB, room=size - 1000)
    connection.sender._frame_size = frame_size
    stream = connection.respond(size)
    if frame_size > size:
        assert not stream.is_open
    assert budget.in_use > size
    assert connection.writer.is_paused
    connection.transport.read(1 << 20)
    assert (budget.in_use, connection.writer.is_paused, stream.is_open) == (0, False, False)


def test_nothing_counts_any_more_once_the_connection_is_lost(budget):
    connection = Connection(budget, window=4 * MIB, room=0)
    connection.sender._frame_size = 1 << 23
    connection.respond(3 * MIB)
    assert budget.in_use > 3 * MIB
    connection.writer.close()
    assert budget.in_use == 0


def test_the_stream_of_a_client_that_opens_no_window_is_reset(budget):
    connection = Connection(budget)
    streams = [connection.respond(3 * MIB) for _ in range(3)]
    for _ in range(5):
        budget.on_tick()
    assert connection.resets == []
    assert budget.has_room(4 * MIB)
    assert connection.resets == [(1, ErrorCode.ENHANCE_YOUR_CALM)]
    assert [stream.is_open for stream in streams] == [False, True, True]
    connection.open(streams[1], 4 * MIB)
    assert not streams[1].is_open


def test_the_connection_of_a_client_that_does_not_read_its_socket_is_closed(budget):
    connection = Connection(budget, window=8 * MIB, room=0)
    connection.sender._frame_size = 1 << 23
    connection.respond(3 * MIB)
    fast = [Connection(budget, window=1000).respond(3 * MIB) for _ in range(2)]
    for _ in range(5):
        for stream in fast:
            stream.controller.open(stream, 1 << 18)
        budget.on_tick()
    assert budget.has_room(3 * MIB)
    assert connection.transport.is_aborted
    assert all(stream.is_open for stream in fast)
    connection.respond(1000)


def test_messages_of_a_stream_count_as_they_come_and_leave(budget):
    connection = Connection(budget)
    stream = connection.stream()
    for marker in range(4):
        connection.sender.send_data(stream, [bytes(1 << 18)], 1 << 18, marker)
    assert budget.in_use == pytest.approx(4 << 18, abs=4000)
    connection.open(stream, 3 << 17)
    connection.run()
    assert stream.handler.sent == [0]
    assert budget.in_use == pytest.approx(3 << 18, abs=4000)
    connection.open(stream, MIB)
    assert budget.in_use == 0
    connection.sender.send_data(stream, [bytes(1 << 19)], 1 << 19, 4)
    assert budget.in_use == pytest.approx(1 << 18, abs=300_000)


def test_a_stream_without_room_for_a_long_message_is_reset_and_its_call_cancelled(budget):
    for _ in range(2):
        Connection(budget).respond(8 * MIB - 1000)
    connection = Connection(budget)
    stream = connection.stream()
    handler = stream.handler
    connection.sender.send_data(stream, [bytes(MIB)], MIB, 1)
    assert connection.resets == [(1, ErrorCode.ENHANCE_YOUR_CALM)]
    assert handler.is_cancelled
    connection.sender.send_trailers(stream, LAST, is_constant=True)
    assert budget.dropped == {"slow": 1}


def test_memory_is_that_of_whole_parts():
    buffer = SendBuffer()
    buffer.put([b"12345", bytes(10_000)], 10_005)
    before = buffer.memory
    buffer.take(1, 5005, 1 << 14)
    assert (buffer.size, buffer.taken) == (5000, 5005)
    assert before - buffer.memory == 5 + 256
    buffer.take(1, 5000, 1 << 14)
    assert (buffer.size, buffer.memory, buffer.taken) == (0, 0, 10_005)
