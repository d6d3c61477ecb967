"""Memory that frontend processes share with guests: parts of inputs, their reuse, and the outputs' offsets."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from naiad_stub.segment import Segment, create_memory

from naiad.guests.memory import link_memory
from naiad.guests.memory.link_memory import LinkMemory
from naiad.guests.memory.tracking import track

CAPACITY = 1 << 20
PAGE = 4096


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Segments of a mebibyte."""
    monkeypatch.setattr(link_memory, "create_memory", lambda name: create_memory(name, CAPACITY))


@pytest.fixture
def memory():
    made = LinkMemory(2)
    yield made
    for inputs in list(made.inputs.values()):
        inputs.close()


def test_each_frontend_process_has_a_part_and_there_are_some_to_spare(memory):
    inputs = memory.add_inputs("m_1")
    assert [inputs.take_part() for _ in range(7)] == [0, 1, 2, 3, 4, 5, None]
    assert inputs.capacity == CAPACITY
    assert inputs.part_size % PAGE == 0
    assert CAPACITY // 6 - PAGE < inputs.part_size <= CAPACITY // 6


def test_segments_have_numbers_of_their_own(memory):
    first, second = memory.add_inputs("a"), memory.add_inputs("b")
    assert memory.inputs == {first.number: first, second.number: second}
    assert first.number == 1
    assert second.number == 2


def test_lent_bytes_are_those_of_the_part_and_their_drop_is_reported(memory):
    inputs = memory.add_inputs("m")
    start = 2 * inputs.part_size + 64
    inputs.view[start : start + 3] = b"abc"
    dropped = []
    lent = inputs.lend(2, 64, 3, lambda: dropped.append("first"))
    other = inputs.lend(2, 128, 3, lambda: dropped.append("second"))
    assert bytes(lent) == b"abc"
    part = lent[1:]
    del lent
    assert dropped == []
    del part
    assert dropped == ["first"]
    del other
    assert dropped == ["first", "second"]
    assert not inputs._references[2]


def test_a_part_of_a_process_that_has_exited_is_empty_when_the_next_one_gets_it(memory):
    inputs = memory.add_inputs("m")
    taken = [inputs.take_part() for _ in range(6)]
    inputs.view[:] = b"x" * CAPACITY
    inputs.retire_part(3)
    assert inputs.take_part() == 3
    assert inputs.take_part() is None
    begin, end = 3 * inputs.part_size, 4 * inputs.part_size
    assert bytes(inputs.view[begin:end]) == bytes(inputs.part_size)
    assert inputs.view[begin - 1] == inputs.view[end] == ord("x")
    assert taken == list(range(6))


def test_a_part_is_reused_only_after_its_bytes_are_dropped(memory):
    inputs = memory.add_inputs("m")
    for _ in range(6):
        inputs.take_part()
    first, second = inputs.lend(1, 0, 10, int), inputs.lend(1, 64, 10, int)
    inputs.retire_part(1)
    assert inputs.take_part() is None
    del first
    assert inputs.take_part() is None
    del second
    assert inputs.take_part() == 1
    # The part has a new owner, whose bytes come and go.
    third = inputs.lend(1, 0, 10, int)
    del third
    assert inputs.take_part() is None


def test_bytes_of_a_process_that_runs_do_not_free_its_part(memory):
    inputs = memory.add_inputs("m")
    for _ in range(6):
        inputs.take_part()
    lent = inputs.lend(0, 0, 10, int)
    del lent
    assert inputs.take_part() is None


def test_a_closed_segment_is_forgotten_once_and_its_lent_bytes_stay(memory):
    inputs = memory.add_inputs("m")
    while inputs.take_part() is not None:
        pass
    inputs.view[:3] = b"abc"
    lent = inputs.lend(0, 0, 3, int)
    descriptor = inputs.descriptor
    assert not inputs.is_closed
    inputs.close()
    assert inputs.is_closed
    assert not memory.inputs
    assert bytes(inputs.view) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    inputs.close()
    inputs.retire_part(0)
    assert bytes(lent) == b"abc"
    del lent
    assert inputs.take_part() is None


def test_a_segment_whose_descriptor_is_zero_is_open_until_it_is_closed(memory, monkeypatch):
    inputs = memory.add_inputs("m")
    owned, inputs.descriptor = inputs.descriptor, 0  # as in a process without standard input
    assert not inputs.is_closed
    closed = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", closed.append)
        inputs.close()
    assert closed == [0]
    assert inputs.is_closed
    os.close(owned)


class Outputs:
    """The output segment of a guest."""

    def __init__(self) -> None:
        self.descriptor, capacity = create_memory("outputs", CAPACITY)
        self.segment = Segment(self.descriptor, capacity)
        self.view = self.segment.view

    def borrow(self, start: int, size: int) -> memoryview:
        borrowed, self.reference = track(self.view, start, size, lambda _: None)
        return borrowed

    def close(self) -> None:
        os.close(self.descriptor)
        self.view = memoryview(b"")
        self.segment.close()


def test_borrowed_outputs_are_found_in_the_segment_of_their_guest(memory):
    first, second = Outputs(), Outputs()
    memory.add_outputs(first.descriptor, first.view)
    memory.add_outputs(second.descriptor, second.view)
    borrowed = second.borrow(100, 50)
    found = memory.find(borrowed[10:20])
    assert (found.number, found.capacity) == (2, CAPACITY)
    assert found.offset_of(borrowed[10:20]) == 110
    assert memory.find(first.borrow(0, 1)).number == 1
    assert found.descriptor != second.descriptor
    assert os.path.sameopenfile(found.descriptor, second.descriptor)

    assert memory.find(b"bytes") is None
    assert memory.find(memoryview(b"bytes")) is None
    assert memory.find(borrowed[:0]) is None

    removed = []
    memory.users.append(SimpleNamespace(forget_segment=removed.append))
    memory.remove_outputs(second.view)
    assert removed == [2]
    assert memory.find(borrowed) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found.descriptor)
    memory.remove_outputs(second.view)
    assert removed == [2]
    memory.remove_outputs(first.view)
    assert removed == [2, 1]
    del borrowed, first.reference, second.reference
    first.close()
    second.close()


def test_the_removal_of_outputs_may_interest_nobody(memory):
    outputs = Outputs()
    memory.add_outputs(outputs.descriptor, outputs.view)
    memory.remove_outputs(outputs.view)
    outputs.close()
