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


class TwoEnds:
    """Both ends of a link, on one loop; what each has received."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        own, other = socket.socketpair()
        self.received: list[tuple[int, bytes]] = []
        self.ended = 0
        self.sender = Link(own, loop, lambda *_: None, lambda: None)
        self.receiver = Link(other, loop, self._on_frame, self._on_end)

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


def test_the_end_of_a_process_is_noticed_within_a_long_frame():
    async def ended() -> list[tuple[int, bytes]]:
        ends = TwoEnds()
        ends.sender.send_parts([wire.FRAME.pack(64 << 20, 2, 0), bytes(64 << 20)])
        await until_async(lambda: ends.receiver.is_receiving)
        ends.sender.close()
        await until_async(lambda: ends.ended == 1)
        assert not ends.receiver.is_receiving
        return ends.received

    assert uvloop.run(ended()) == []
