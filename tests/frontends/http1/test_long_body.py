"""A long body moves into memory of an instance while it arrives, in pieces, and none of its bytes is lost."""

from __future__ import annotations

import random

import pytest

from naiad.frontends.http1.long_body import LongBody
from naiad.frontends.request_memory import RequestMemory

SIZE = 8 << 20


class Nobody:
    def resume_receiving(self) -> None:
        raise AssertionError

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize("step", [4096, 1 << 18, 3_000_001])
def test_bytes_received_before_the_reservation_are_copied_as_more_arrive(step):
    data = random.Random(step).randbytes(SIZE)
    reserved = memoryview(bytearray(SIZE))
    memory = RequestMemory()
    body = LongBody(SIZE, memory, Nobody(), reserve=lambda: reserved)
    copied = []
    while not body.is_complete:
        free = body.free()
        count = min(step, len(free), SIZE - body.received)
        free[:count] = data[body.received : body.received + count]
        before = body._copied
        assert body.count(count)
        if body._reserved is not None:
            copied.append(body._copied - before)
    assert body._buffer is None, "the buffer is kept for others"
    assert max(copied) <= max(2 * step, 1 << 18)
    assert body.finish() == data
    assert memory.budget.in_use == SIZE
    assert memory.buffers.kept_size > 0


def test_body_that_is_dropped_in_between_frees_all():
    memory = RequestMemory()
    body = LongBody(SIZE, memory, Nobody(), reserve=lambda: memoryview(bytearray(SIZE)))
    while body._reserved is None:
        body.count(min(len(body.free()), SIZE // 16))
    body.drop()
    assert memory.budget.in_use == 0
