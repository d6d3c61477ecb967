"""Frames that wait for copies of inputs: one whose inputs cannot be copied does not hold up those behind it."""

from __future__ import annotations

import asyncio

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
