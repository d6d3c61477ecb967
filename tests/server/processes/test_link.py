"""The end of a link, on the loop that servers use."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from naiad_stub import wire
from support.waiting import until_async

from naiad.server.processes import link as links
from naiad.server.processes.link import LONG_FRAME, Link


def frame(number: int) -> bytes:
    return wire.FRAME.pack(1, number, 0) + b"x"


class Ends:
    """A link, and the socket of the process at its other end."""

    def __init__(self, on_frame: Callable[[int], None] = lambda _: None) -> None:
        self.kinds: list[int] = []
        self.ended = 0
        own, self.other = socket.socketpair()

        def handle(kind: int, _: bytes) -> None:
            self.kinds.append(kind)
            on_frame(kind)

        self.link = Link(own, asyncio.get_running_loop(), handle, self._on_end)

    def _on_end(self) -> None:
        self.ended += 1

    def close(self) -> None:
        self.link.close()
        self.other.close()


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("frames", [0, 1, 400])
def test_what_a_killed_process_has_sent_is_handled_and_its_end_is_noticed(frames, unread):
    """Where it had not read everything, libuv reports its end once, when there may be other things to read."""

    async def ended() -> list[int]:
        ends = Ends()
        if unread:
            ends.link.send(b"never read")
            ends.link.flush()
        ends.other.sendall(b"".join(frame(number % 100) for number in range(frames)))
        ends.other.close()
        await until_async(lambda: ends.ended == 1)
        return ends.kinds

    assert uvloop.run(ended()) == [number % 100 for number in range(frames)]


def test_the_end_of_a_process_is_noticed_while_its_frames_wait_for_their_share_of_the_turn(monkeypatch):
    monkeypatch.setattr("naiad.server.processes.link.SHARE_SECONDS", 0)

    async def ended() -> list[int]:
        ends = Ends()
        ends.link.send(b"never read")
        ends.link.flush()
        ends.other.sendall(b"".join(frame(number) for number in range(50)))
        await until_async(lambda: len(ends.kinds) >= 1)
        ends.other.close()
        await until_async(lambda: ends.ended == 1)
        return ends.kinds

    assert uvloop.run(ended()) == list(range(50))


def test_who_waits_for_an_answer_notices_that_the_process_was_killed_before_it_had_read_everything():
    async def check() -> None:
        ends = Ends()
        ends.link.send(b"never read")
        ends.link.flush()
        ends.other.close()
        assert not ends.link.receive()
        assert (ends.kinds, ends.ended, ends.link.is_open) == ([], 1, False)

    asyncio.run(check())


class ManualTime:
    """The clock of links: it passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10.0
        monkeypatch.setattr(links, "clock", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(links, "SHARE_SECONDS", 1.0)

    def pass_quarter(self, *_: object) -> None:
        """Let a quarter of a share pass."""
        self.now += 0.25


async def counts_by_turn(done: list[int], total: int) -> list[int]:
    """How many entries each turn of the loop adds to *done*, but for turns that add none."""
    counts = []
    while len(done) < total:
        before = len(done)
        await asyncio.sleep(0)
        counts.append(len(done) - before)
    return [each for each in counts if each]


def test_frames_are_handled_for_a_share_of_each_turn_which_begins_after_the_first(monkeypatch):
    time = ManualTime(monkeypatch)

    async def check() -> None:
        ends = Ends(time.pass_quarter)
        ends.other.sendall(b"".join(frame(number) for number in range(12)))
        assert await counts_by_turn(ends.kinds, 12) == [5, 5, 2]
        ends.close()

    asyncio.run(check())


class TimedSocket:
    """A socket; each call of `sendmsg` takes a quarter of a share."""

    def __init__(self, sock: socket.socket, time: ManualTime) -> None:
        self.sent: list[int] = []
        self._socket = sock
        self._time = time

    def sendmsg(self, *arguments: Any) -> int:
        self._time.pass_quarter()
        self.sent.append(self._socket.sendmsg(*arguments))
        return self.sent[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def test_a_long_frame_is_sent_for_a_share_of_each_turn(monkeypatch):
    time = ManualTime(monkeypatch)
    for name in ("LONG_FRAME", "_PIECE"):
        monkeypatch.setattr(links, name, 1 << 10)

    async def check() -> None:
        ends = Ends()
        assert ends.link._socket is not None
        timed: Any = TimedSocket(ends.link._socket, time)
        ends.link._socket = timed
        ends.link.send_parts([wire.FRAME.pack(10 << 10, 2, 0), bytes(10 << 10)])
        assert await counts_by_turn(timed.sent, 11) == [4, 4, 3]
        assert timed.sent == [wire.FRAME.size, *[1 << 10] * 10]
        assert not asyncio.get_running_loop().remove_writer(timed.fileno()), "nothing is left to send"
        ends.close()

    asyncio.run(check())


@pytest.mark.parametrize("has_descriptor", [False, True])
def test_a_frame_of_which_a_full_socket_takes_nothing_arrives_whole(has_descriptor):
    async def check() -> None:
        ends = Ends()
        sock = ends.link._socket
        assert sock is not None
        before, received = 0, bytearray()
        with suppress(BlockingIOError):
            while True:
                before += sock.send(bytes(1 << 12))
        if has_descriptor:
            ends.link.send_descriptor(frame(5), ends.other.fileno())
        else:
            ends.link.send(frame(5))
            ends.link.flush()
        assert ends.link.has_backlog
        ends.other.setblocking(False)

        def is_complete() -> bool:
            with suppress(BlockingIOError):
                received.extend(ends.other.recv(1 << 20))
            return len(received) >= before + len(frame(5))

        await until_async(is_complete)
        assert received[before:] == frame(5)
        ends.close()

    asyncio.run(check())


class TwoEnds:
    """Both ends of a link, on one loop; what each has received."""

    def __init__(self, is_urgent: Callable[[int, bytes | memoryview], bool] = lambda *_: True) -> None:
        loop = asyncio.get_running_loop()
        own, other = socket.socketpair()
        self.received: list[tuple[int, bytes]] = []
        self.ended = 0
        self.sender = Link(own, loop, lambda *_: None, lambda: None)
        self.receiver = Link(other, loop, self._on_frame, self._on_end, is_urgent)

    def _on_frame(self, kind: int, payload: bytes | memoryview) -> None:
        self.received.append((kind, bytes(payload)))

    def _on_end(self) -> None:
        self.ended += 1

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def test_a_long_frame_is_sent_and_received_in_pieces_while_the_loop_serves_others(monkeypatch):
    monkeypatch.setattr("naiad.server.processes.link.SHARE_SECONDS", 0)
    tensors = [bytes(range(256)) * 8192, b"short", memoryview(bytes(3 << 20))]
    size = sum(map(len, tensors))

    async def turns() -> int:
        ends = TwoEnds()
        ends.sender.send(frame(1))
        ends.sender.send_parts([wire.FRAME.pack(size, 2, 0), *tensors])
        ends.sender.send(frame(3))
        ends.sender.send_parts([wire.FRAME.pack(size, 4, 0), *tensors])
        ends.sender.send_parts([wire.FRAME.pack(2, 5, 0), b"x", b"y"])
        count = 0
        while len(ends.received) < 5:
            await asyncio.sleep(0)
            count += 1
        ends.close()
        assert [kind for kind, _ in ends.received] == [1, 2, 3, 4, 5]
        assert ends.received[1][1] == ends.received[3][1] == b"".join(tensors)
        assert ends.received[4][1] == b"xy"
        return count

    assert uvloop.run(turns()) > 2 * size >> 18


@pytest.mark.parametrize("size", [1, LONG_FRAME - wire.FRAME.size, LONG_FRAME, 4 << 20])
@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_frame_of_any_size_arrives_whole_behind_those_before_it(size, is_in_parts):
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)

    async def check() -> None:
        ends = TwoEnds()
        ends.sender.send(frame(1))
        parts = [wire.FRAME.pack(size, 2, 0), payload[: size // 2], b"", payload[size // 2 :]]
        if is_in_parts:
            ends.sender.send_parts(parts)
        else:
            ends.sender.send(b"".join(parts))
        ends.sender.send(frame(3))
        ends.sender.flush()
        assert ends.sender.has_backlog is (size > 1), "the socket takes less than that"
        await until_async(lambda: len(ends.received) == 3)
        assert not ends.sender.has_backlog
        assert ends.sender._socket is not None
        assert not asyncio.get_running_loop().remove_writer(ends.sender._socket), "nothing is left to send"
        assert ends.receiver._long is None
        ends.close()
        assert ends.received == [(1, b"x"), (2, payload), (3, b"x")]

    asyncio.run(check())


def test_who_waits_for_an_answer_gets_urgent_frames_alone_and_the_others_later_in_their_order():
    async def check() -> None:
        ends = TwoEnds(lambda kind, _: kind >= 10)
        for number in (1, 10, 2, 11, 3):
            ends.sender.send(frame(number))
            ends.sender.flush()
        assert ends.receiver.receive()
        assert not ends.receiver.receive()
        assert [kind for kind, _ in ends.received] == [10, 11]
        assert repr(ends.receiver._turns) == "<LoopTurns deferred=1>", "the others are handled once"
        ends.sender.send(frame(12))
        ends.sender.send(frame(4))
        ends.sender.flush()
        await until_async(lambda: len(ends.received) == 7)
        assert [kind for kind, _ in ends.received] == [10, 11, 1, 2, 3, 12, 4]
        ends.close()

    asyncio.run(check())


def test_frames_to_a_process_that_has_exited_are_dropped_and_its_end_is_noticed_once():
    async def check() -> None:
        ends = TwoEnds()
        ends.receiver.close()
        for number in range(3):
            ends.sender.send(frame(number))
            ends.sender.flush()
        ends.sender.send_parts([wire.FRAME.pack(LONG_FRAME, 2, 0), bytes(LONG_FRAME)])
        await until_async(lambda: not ends.sender.has_backlog)
        assert ends.ended == 0, "its own end"
        assert not ends.sender.receive()
        assert not ends.sender.is_open
        ends.sender.send(frame(9))
        ends.sender.send_lazily(frame(9))
        ends.sender.flush()
        assert not ends.sender.has_backlog
        ends.close()

    asyncio.run(check())


def test_the_end_of_a_process_is_noticed_within_a_long_frame():
    async def ended() -> list[tuple[int, bytes]]:
        ends = TwoEnds()
        ends.sender.send_parts([wire.FRAME.pack(64 << 20, 2, 0), bytes(64 << 20)])
        await until_async(lambda: ends.receiver._long is not None)
        ends.sender.close()
        await until_async(lambda: ends.ended == 1)
        assert ends.receiver._long is None
        return ends.received

    assert uvloop.run(ended()) == []


def open_descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_descriptors_arrive_with_their_frames_behind_what_waits_and_none_is_left():
    async def check() -> None:
        ends = TwoEnds()
        long = bytes(2 << 20)
        read, write = os.pipe()
        ends.sender.send_parts([wire.FRAME.pack(len(long), 2, 0), long])
        assert not ends.sender.has_backlog or ends.sender.is_open
        ends.sender.send_descriptor(frame(3), write)
        assert ends.sender.has_backlog
        os.close(write)
        await until_async(lambda: len(ends.received) == 2)
        assert [kind for kind, _ in ends.received] == [2, 3]
        passed = ends.receiver.descriptors.popleft()
        os.write(passed, b"it is the same pipe")
        assert os.read(read, 100) == b"it is the same pipe"
        for descriptor in (passed, read):
            os.close(descriptor)
        ends.close()

    before = open_descriptors()
    asyncio.run(check())
    assert open_descriptors() <= before


def test_descriptors_are_closed_that_nobody_takes_or_that_cannot_be_sent():
    async def check() -> None:
        ends = TwoEnds()
        read, write = os.pipe()
        ends.sender.send_descriptor(frame(1), write)
        await until_async(lambda: ends.received)
        ends.sender.send_parts([wire.FRAME.pack(64 << 20, 2, 0), bytes(64 << 20)])
        ends.sender.send_descriptor(frame(3), write)  # waits behind it
        assert ends.sender._socket is not None
        loop, own = asyncio.get_running_loop(), ends.sender._socket.fileno()
        ends.close()
        assert not ends.sender.has_backlog
        assert [loop.remove_reader(own), loop.remove_writer(own)] == [False, False], "the loop has forgotten it"
        ends.sender.send_descriptor(frame(4), write)  # to nobody
        ends.close()
        for descriptor in (read, write):
            os.close(descriptor)
        assert not ends.sender.is_open
        assert not ends.sender.receive()

    before = open_descriptors()
    asyncio.run(check())
    assert open_descriptors() <= before


def test_who_waits_for_an_answer_sends_what_is_queued_and_gets_what_has_arrived():
    async def check() -> None:
        ends = TwoEnds()
        assert not ends.receiver.receive(0)
        assert not ends.receiver.receive(0.001), "nothing has come"
        ends.sender.send(frame(1))
        assert not ends.receiver.receive(0), "it is sent at the end of the turn"
        ends.sender.flush()
        assert ends.receiver.receive(None)
        assert [kind for kind, _ in ends.received] == [1]
        ends.receiver.send(frame(7))
        ends.sender.send(frame(2))
        ends.sender.flush()
        assert ends.receiver.receive(None)
        assert ends.sender.receive(0), "the other one has sent what it had to send before it waited"
        ends.close()

    asyncio.run(check())


def test_who_waits_for_an_answer_is_woken_by_what_arrives_and_by_room_for_what_is_queued(monkeypatch):
    waited: list[Any] = []

    class Poll:
        def register(self, _: object, events: int) -> None:
            waited.append(events)

        def poll(self, milliseconds: float | None) -> None:
            waited.append(milliseconds)

    fake = SimpleNamespace(poll=Poll, POLLIN=select.POLLIN, POLLOUT=select.POLLOUT)
    monkeypatch.setattr(links, "select", fake)

    async def check() -> None:
        ends = TwoEnds()
        assert not ends.sender.receive(0)
        assert not ends.sender.receive(0.25)
        ends.sender.send_parts([wire.FRAME.pack(LONG_FRAME, 2, 0), bytes(LONG_FRAME)])
        assert not ends.sender.receive(None)
        assert waited == [select.POLLIN, 250.0, select.POLLIN | select.POLLOUT, None]
        assert ends.receiver.receive(), "it was sent meanwhile"
        ends.close()

    asyncio.run(check())


@pytest.mark.parametrize("is_closed", [False, True])
def test_frames_that_wait_for_a_later_turn_are_handled_before_an_answer_is_waited_for_and_not_after_the_end(
    monkeypatch, is_closed
):
    monkeypatch.setattr(links, "SHARE_SECONDS", 0)

    async def check() -> None:
        ends = TwoEnds()
        for number in range(4):
            ends.sender.send(frame(number))
        ends.sender.flush()
        while not ends.received:
            await asyncio.sleep(0)
        assert [kind for kind, _ in ends.received] == [0, 1]
        if is_closed:
            ends.receiver.close()
            for _ in range(3):
                await asyncio.sleep(0)
        else:
            assert not ends.receiver.receive(), "nothing else has arrived"
        assert [kind for kind, _ in ends.received] == ([0, 1] if is_closed else [0, 1, 2, 3])
        ends.close()

    asyncio.run(check())


def test_frames_that_only_free_memory_wait_for_others_and_go_first():
    async def check() -> None:
        ends = TwoEnds()
        ends.sender.send_lazily(frame(1))
        await asyncio.sleep(0)
        assert not ends.receiver.receive(0)
        ends.sender.send(frame(2))
        ends.sender.flush()
        assert ends.receiver.receive(0)
        assert [kind for kind, _ in ends.received] == [1, 2]
        ends.sender.send_lazily(frame(3))
        await until_async(lambda: len(ends.received) == 3)
        ends.sender.send_lazily(frame(4))
        await until_async(lambda: len(ends.received) == 4)
        ends.sender.send_lazily(frame(5))
        ends.close()

    asyncio.run(check())


def test_memory_is_freed_from_any_thread_and_also_when_the_link_is_closed():
    async def check() -> None:
        ends = TwoEnds()
        await asyncio.to_thread(ends.sender.send_lazily, frame(1))
        await until_async(lambda: ends.received)
        assert [kind for kind, _ in ends.received] == [1]
        ends.close()
        await asyncio.to_thread(ends.sender.send_lazily, frame(2))
        ends.sender.send_lazily(frame(3))
        assert not ends.sender._lazy

    asyncio.run(check())
