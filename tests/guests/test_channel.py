"""Frames of one guest share the event loop with everything else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from time import perf_counter

from naiad_stub import wire

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


def run(test: Callable[[Guest], Awaitable[None]]) -> None:
    async def with_guest() -> None:
        guest = Guest(asyncio.get_running_loop())
        try:
            await asyncio.wait_for(test(guest), 60)
        finally:
            guest.channel.close()
            guest.socket.close()

    asyncio.run(with_guest())


def test_frames_that_arrive_together_are_handled_in_shares_and_in_order() -> None:
    async def test(guest: Guest) -> None:
        guest.send(MANY)
        handled = []
        while len(guest.handled) < MANY:
            before = len(guest.handled)
            await asyncio.sleep(0)
            handled.append(len(guest.handled) - before)
        # A share is four or five frames, and one turn of the loop has at most two of them.
        assert max(handled) <= MANY // 4
        assert guest.handled == [b"%d" % number for number in range(MANY)]

    run(test)


def test_bytes_behind_waiting_frames_are_read_after_them() -> None:
    async def test(guest: Guest) -> None:
        guest.send(MANY)
        await guest.until_handled(1)
        guest.socket.sendall(wire.frame(wire.Kind.LOG, b"last"))
        guest.socket.shutdown(socket.SHUT_WR)
        await guest.until_handled(MANY + 1)
        assert guest.handled[-1] == b"last"
        while not guest.ends:
            await asyncio.sleep(0)
        assert guest.ends == ["it closed its channel"]

    run(test)


def test_all_frames_of_a_guest_are_handled_before_the_channel_is_drained() -> None:
    async def test(guest: Guest) -> None:
        drained: list[int] = []
        guest.send(MANY)
        guest.channel.drain(lambda: drained.append(len(guest.handled)))
        assert len(guest.handled) < MANY, "draining holds the loop no longer than a share"
        while not drained:
            await asyncio.sleep(0)
        assert drained == [MANY]

    run(test)


def test_a_channel_without_anything_to_read_is_drained_at_once() -> None:
    async def test(guest: Guest) -> None:
        drained: list[int] = []
        guest.channel.drain(lambda: drained.append(0))
        assert drained == [0]

    run(test)


def test_a_channel_that_is_closed_while_it_drains_handles_nothing_more() -> None:
    async def test(guest: Guest) -> None:
        drained: list[int] = []
        guest.send(MANY)
        guest.channel.drain(lambda: drained.append(len(guest.handled)))
        guest.channel.close()
        before = len(guest.handled)
        while not drained:
            await asyncio.sleep(0)
        assert drained == [before]

    run(test)
