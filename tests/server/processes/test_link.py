"""The end of a link, on the loop that servers use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop
from naiad_stub import wire
from support.waiting import until_async

from naiad.server.processes.link import Link


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
