"""Frames of one guest share the event loop with everything else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any

import pytest
from naiad_stub import wire
from support.waiting import until_async

from naiad.core.turns import SHARE_SECONDS
from naiad.guests.channel import Channel

MANY = 200


def work(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


class Guest:
    """The other end of a channel, whose frames take a quarter of a share each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        host, self.socket = socket.socketpair()
        host.setblocking(False)
        self.loop = loop
        self.handled: list[bytes] = []
        self.ends: list[str] = []
        self.channel = Channel(host, loop, self._on_frame, self.ends.append)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        self.handled.append(payload)
        work(SHARE_SECONDS / 4)

    def send(self, count: int) -> None:
        self.socket.sendall(b"".join(wire.frame(wire.Kind.LOG, b"%d" % number) for number in range(count)))

    async def until_handled(self, count: int) -> None:
        while len(self.handled) < count:
            await asyncio.sleep(0)


@pytest.fixture
def guest() -> Iterator[Guest]:
    loop = asyncio.new_event_loop()
    made = Guest(loop)
    yield made
    made.channel.close()
    made.socket.close()
    loop.close()


@pytest.fixture
def run_coroutine(guest: Guest) -> Callable[[Coroutine[Any, Any, object]], object]:
    return lambda test: guest.loop.run_until_complete(asyncio.wait_for(test, 60))


async def test_frames_that_arrive_together_are_handled_in_shares_and_in_order(guest: Guest) -> None:
    guest.send(MANY)
    handled = []
    while len(guest.handled) < MANY:
        before = len(guest.handled)
        await asyncio.sleep(0)
        handled.append(len(guest.handled) - before)
    # A share is four or five frames, and one turn of the loop has at most two of them.
    assert max(handled) <= MANY // 4
    assert guest.handled == [b"%d" % number for number in range(MANY)]


async def test_bytes_behind_waiting_frames_are_read_after_them(guest: Guest) -> None:
    guest.send(MANY)
    await guest.until_handled(1)
    guest.socket.sendall(wire.frame(wire.Kind.LOG, b"last"))
    guest.socket.shutdown(socket.SHUT_WR)
    await guest.until_handled(MANY + 1)
    assert guest.handled[-1] == b"last"
    while not guest.ends:
        await asyncio.sleep(0)
    assert guest.ends == ["it closed its channel"]


async def test_all_frames_of_a_guest_are_handled_before_the_channel_is_drained(guest: Guest) -> None:
    drained: list[int] = []
    guest.send(MANY)
    guest.channel.drain(lambda: drained.append(len(guest.handled)))
    assert len(guest.handled) < MANY, "draining holds the loop no longer than a share"
    while not drained:
        await asyncio.sleep(0)
    assert drained == [MANY]


async def test_a_channel_without_anything_to_read_is_drained_at_once(guest: Guest) -> None:
    drained: list[int] = []
    guest.channel.drain(lambda: drained.append(0))
    assert drained == [0]


async def test_a_channel_that_is_closed_while_it_drains_handles_nothing_more(guest: Guest) -> None:
    drained: list[int] = []
    guest.send(MANY)
    guest.channel.drain(lambda: drained.append(len(guest.handled)))
    guest.channel.close()
    before = len(guest.handled)
    while not drained:
        await asyncio.sleep(0)
    assert drained == [before]


async def test_what_the_socket_does_not_take_at_once_is_sent_later_in_order(guest: Guest) -> None:
    long = bytes(range(256)) * 8192
    for data in (long, b"second", b"third"):
        guest.channel.send(data)
    assert guest.channel._outgoing.endswith(b"secondthird")
    received = bytearray()
    guest.socket.setblocking(False)
    while len(received) < len(long) + 11:
        with suppress(BlockingIOError):
            received += guest.socket.recv(1 << 16)
        await asyncio.sleep(0)
    assert received == long + b"secondthird"
    assert not guest.channel._outgoing
    guest.channel.send(b"at once")
    assert guest.socket.recv(99) == b"at once"
    guest.channel.send(long)
    loop, end = guest.channel._loop, guest.channel._socket.fileno()
    guest.channel.close()
    guest.channel.close()
    assert (loop.remove_writer(end), loop.remove_reader(end)) == (False, False), "another socket may get its number"
    guest.channel.send(b"never")
    guest.channel._writable()


async def test_what_is_for_the_end_of_a_turn_is_sent_in_one_piece_and_keeps_its_place(guest: Guest) -> None:
    sent: list[bytes] = []
    guest.channel._write = sent.append  # type: ignore[method-assign] # one call is one system call
    guest.channel.send_soon(b"1")
    guest.channel.send_soon(b"2")
    guest.channel.send(b"3")
    assert sent == []
    await asyncio.sleep(0)
    guest.channel.send_soon(b"4")
    await asyncio.sleep(0)
    guest.channel.send(b"5")
    assert sent == [b"123", b"4", b"5"]


async def test_the_end_of_a_guest_is_reported_once_with_its_reason() -> None:
    async def end(
        how: Callable[[Guest], object], reason: str, *, was_cut: bool = False, is_broken: bool = False
    ) -> None:
        guest = Guest(asyncio.get_running_loop())
        activity: list[None] = []
        guest.channel._on_activity = lambda: activity.append(None)
        how(guest)
        await until_async(lambda: guest.ends, "the end")
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(guest.ends) == 1
        assert guest.ends[0].startswith(reason)
        assert (guest.channel.was_cut, guest.channel.is_broken, bool(activity)) == (was_cut, is_broken, True)
        drained: list[int] = []
        guest.channel.drain(lambda: drained.append(1))
        assert drained == [1], "what comes behind a malformed frame is not read"
        guest.channel.close()
        guest.socket.close()

    await end(lambda guest: guest.socket.close(), "it closed its channel")
    await end(
        lambda guest: (guest.channel.send(b"unread"), guest.socket.close()), "it closed its channel", was_cut=True
    )
    broken = wire.FRAME.pack(wire.MAX_GUEST_FRAME + 1, wire.Kind.LOG, 0)
    await end(lambda guest: guest.socket.send(broken), "it broke the protocol: a message of", is_broken=True)
    query = wire.FRAME.pack(wire.MAX_GUEST_FRAME + 1, wire.Kind.QUERY, 0)
    await end(lambda guest: (guest.socket.send(query), guest.socket.close()), "it closed its channel")


async def test_a_send_to_a_guest_that_has_gone_looks_for_the_end_that_nothing_else_reports(guest: Guest) -> None:
    guest.channel._loop.remove_reader(guest.channel._socket)  # type: ignore[arg-type] # it is open
    guest.socket.close()
    guest.channel.send(b"x")
    assert guest.ends == []
    await asyncio.sleep(0)
    assert guest.ends == ["it closed its channel"]
    guest.channel._outgoing += b"rest"
    guest.channel._writable()
    assert not guest.channel._outgoing


async def test_every_single_frame_is_handled_as_it_is_read(guest: Guest) -> None:
    for number in range(3):
        guest.socket.sendall(wire.frame(wire.Kind.LOG, b"%d" % number))
        await guest.until_handled(number + 1)
    half = wire.frame(wire.Kind.LOG, b"in two halves")
    guest.socket.sendall(half[:9])
    await asyncio.sleep(0)
    guest.socket.sendall(half[9:])
    await guest.until_handled(4)
    assert guest.handled == [b"0", b"1", b"2", b"in two halves"]
