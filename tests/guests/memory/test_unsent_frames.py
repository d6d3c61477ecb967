"""Frames that wait for copies of inputs: in order, in slices, and past inputs that cannot be copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from naiad.guests.memory.unsent_frames import UnsentFrames

SIZE = 3 << 20
"""Bytes: three slices."""


def test_a_failed_copy_is_reported_and_later_frames_are_sent() -> None:
    sent: list[tuple[bytes, int]] = []
    failed: list[tuple[int, str]] = []

    async def put() -> bytearray:
        unsent = UnsentFrames(
            asyncio.get_running_loop(),
            lambda data, number: sent.append((data, number)),
            lambda number, error: failed.append((number, str(error))),
        )
        released, target = memoryview(bytearray(SIZE)), bytearray(SIZE)
        unsent.put(b"first", 1, [(memoryview(bytearray(SIZE)), bytes(SIZE)), (released, bytes(SIZE))])
        unsent.put(b"cancellation")
        unsent.put(b"second", 2, [(memoryview(target), b"\1" * SIZE)])
        released.release()
        while unsent.waiting:
            await asyncio.sleep(0)
        return target

    assert asyncio.run(put()) == b"\1" * SIZE
    assert sent == [(b"cancellation", 0), (b"second", 2)]
    assert failed == [(1, "operation forbidden on released memoryview object")]


class Turns:
    """A loop that runs what it was given one turn at a time."""

    def __init__(self) -> None:
        self._next: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._next.append(callback)

    def turn(self) -> None:
        now, self._next = self._next, []
        assert now, "nothing is to be done"
        for callback in now:
            callback()


class Frames:
    """Frames on such a loop, with what was sent of them."""

    def __init__(self) -> None:
        self.loop = Turns()
        self.sent: list[tuple[bytes, int]] = []
        self.unsent = UnsentFrames(self.loop, lambda data, number: self.sent.append((data, number)), pytest.fail)


@pytest.fixture
def frames():
    return Frames()


def test_inputs_are_copied_in_slices_of_a_turn(frames):
    first, second = bytearray(SIZE // 2), bytearray(SIZE)
    source = bytes(range(1, 256)) * (SIZE // 255 + 1)
    copies = [(memoryview(first), source[: SIZE // 2]), (memoryview(second), memoryview(source)[:SIZE])]
    frames.unsent.put(b"batch", 7, copies)
    assert frames.sent == []
    for turn in range(1, 5):
        frames.loop.turn()
        copied = len(first) + len(second) - first.count(0) - second.count(0)
        assert copied == turn << 20
        assert frames.sent == []
    frames.loop.turn()
    assert frames.sent == [(b"batch", 7)]
    assert (first, second) == (source[: SIZE // 2], source[:SIZE])
    assert not frames.unsent.waiting


def test_several_batches_share_the_slice_of_a_turn(frames):
    targets = [bytearray(600 << 10) for _ in range(2)]
    for number, target in enumerate(targets, 1):
        frames.unsent.put(b"batch", number, [(memoryview(target), b"x" * len(target))])
    assert frames.unsent.batches == [1, 2]
    frames.loop.turn()
    assert [target.count(b"x") for target in targets] == [600 << 10, 424 << 10]
    assert frames.sent == [(b"batch", 1)]
    assert frames.unsent.batches == [2]
    frames.loop.turn()
    assert frames.sent == [(b"batch", 1), (b"batch", 2)]


def test_frames_without_inputs_are_sent_in_order_in_the_next_turn(frames):
    frames.unsent.put(b"first")
    frames.unsent.put(b"second", 3, [(memoryview(bytearray(1)), b"")])
    assert frames.unsent.batches == [3]
    frames.loop.turn()
    assert frames.sent == [(b"first", 0), (b"second", 3)]
    frames.unsent.put(b"third")
    frames.loop.turn()
    assert frames.sent[2:] == [(b"third", 0)]


def test_nothing_is_sent_to_a_guest_that_has_gone(frames):
    waiting = frames.unsent.waiting
    frames.unsent.put(b"first", 1)
    frames.unsent.clear()
    assert frames.unsent.batches == []
    frames.loop.turn()
    assert frames.sent == []
    assert frames.unsent.waiting is waiting
