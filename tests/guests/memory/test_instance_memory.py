"""The two segments of an instance: blocks of inputs, borrowed outputs, descriptors, and failures to get any."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from naiad_stub.segment import create_memory
from naiad_stub.wire import INLINE_LIMIT

from naiad.core.errors import OutOfMemoryError
from naiad.guests.memory import instance
from naiad.guests.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.guests.memory.link_memory import LinkMemory

CAPACITY = 1 << 20
PAGE = 4096


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def memory():
    made = InstanceMemory("m_0_0", capacity=CAPACITY)
    yield made
    made.close()


def test_small_inputs_travel_in_the_message(memory):
    for size in (0, 1, INLINE_LIMIT):
        block, view = memory.allocate_input(size)
        assert block == -1 - size
        assert bytes(view) == bytes(size)
    assert memory.input_byte_size == 0


def test_larger_inputs_have_a_block_until_the_guest_releases_it(memory):
    first, view = memory.allocate_input(INLINE_LIMIT + 1)
    assert first == 0
    assert view is memory.inputs.view
    second, _ = memory.allocate_input(PAGE)
    assert (second, memory.input_byte_size) == (PAGE, 2 * PAGE)
    memory.release_input(first)
    assert memory.input_byte_size == PAGE
    memory.release_input(second)
    assert memory.input_byte_size == 0


def test_inputs_that_do_not_fit_have_no_block(memory):
    assert memory.allocate_input(CAPACITY) == (0, memory.inputs.view)
    assert memory.allocate_input(PAGE) is None
    error = memory.full_error("cannot send 'x'")
    assert isinstance(error, OutOfMemoryError)
    assert str(error) == f"cannot send 'x' ({CAPACITY} of {CAPACITY} bytes in use)"


def test_reserved_memory_that_was_dropped_is_free_for_inputs(memory):
    body = memory.reservations.reserve(PAGE // 2, 0)
    while memory.allocate_input(PAGE) is not None:
        pass
    del body
    assert memory.allocate_input(PAGE) == (0, memory.inputs.view)


def test_dropped_reservations_do_not_count_as_in_use(memory):
    body = memory.reservations.reserve(PAGE, 0)
    assert memory.input_byte_size > 0
    del body
    assert memory.input_byte_size == 0


def test_a_claimed_block_is_free_when_guest_and_request_are_done_with_it(memory):
    body = memory.reservations.reserve(PAGE, 0)
    block, _ = memory.reservations.claim([body], [0])
    memory.release_input(block)
    assert memory.input_byte_size > 0
    assert not memory.reservations.sent
    del body
    assert memory.input_byte_size == 0


def test_gpu_memory_is_kept_until_its_input_block_is_released(memory):
    released = []
    memory.regions.release = released.append
    block, _ = memory.allocate_input(PAGE)
    memory.release_input(block)
    assert released == [block]


def test_trimming_returns_free_pages_and_says_whether_any_are_left(memory, monkeypatch):
    block, view = memory.allocate_input(PAGE)
    view[:PAGE] = b"x" * PAGE
    memory.release_input(block)
    assert not memory.trim()
    assert bytes(memory.inputs.view[:PAGE]) == bytes(PAGE)

    del view
    block, _ = memory.allocate_input(PAGE)
    memory.release_input(block)
    asked = []
    monkeypatch.setattr(type(memory.inputs), "trim", lambda _, seconds: asked.append(seconds))
    assert memory.trim()
    assert asked == [instance.TRIM_SECONDS]


def test_trimming_first_frees_what_was_dropped(memory):
    body = memory.reservations.reserve(PAGE, 0)
    body[:] = b"x" * PAGE
    del body
    assert not memory.trim()
    assert bytes(memory.inputs.view[: 2 * PAGE]) == bytes(2 * PAGE)


def test_borrowed_outputs_release_their_block_with_the_last_reference(memory):
    memory.outputs[100:110] = bytes(range(10))
    first = memory.borrow(64, 100, 110)
    second = memory.borrow(PAGE, PAGE, PAGE)
    assert bytes(first) == bytes(range(10))
    assert len(second) == 0
    assert memory.borrowed_count == 2
    part = first[2:4]
    del first
    assert not memory.released
    assert not memory.has_large_released
    del part
    assert list(memory.released) == [64]
    assert memory.has_large_released
    assert memory.borrowed_count == 1
    del second
    assert list(memory.released) == [64, PAGE]


def test_outputs_stay_readable_after_the_guest_has_gone(memory):
    memory.outputs[:3] = b"abc"
    borrowed = memory.borrow(0, 0, 3)
    memory.close()
    assert bytes(borrowed) == b"abc"
    assert bytes(memory.outputs) == b""
    assert memory.inputs.view.nbytes == 0


def test_closing_closes_what_belongs_to_the_guest(memory):
    other = InstanceMemory("other", capacity=CAPACITY)
    memory.regions.exporter.add_importer(other.regions.importer)
    body = memory.reservations.reserve(PAGE, 0)
    memory.reservations.claim([body], [0])
    descriptors = memory.input_descriptor, memory.output_descriptor
    assert all(map(is_open, descriptors))
    memory.close()
    assert not any(map(is_open, descriptors))
    assert (memory.input_descriptor, memory.output_descriptor) == (-1, -1)
    assert other.regions.importer.ended == [memory.regions.exporter.number]
    assert not memory.reservations.sent
    other.close()


def test_descriptors_are_closed_once(memory, monkeypatch):
    owned = memory.input_descriptor, memory.output_descriptor
    closed = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", closed.append)
        memory.input_descriptor = 0  # as in a process without standard input
        memory.close_descriptors()
        memory.close_descriptors()
    assert closed == [0, owned[1]]
    for descriptor in owned:
        os.close(descriptor)


def test_outputs_are_copied_only_where_no_frontend_process_reads_them():
    shared = LinkMemory(1)
    plain = InstanceMemory("plain", capacity=CAPACITY)
    read_elsewhere = InstanceMemory("shared", capacity=CAPACITY, shared=shared)
    assert (plain.copy_limit, read_elsewhere.copy_limit) == (COPY_LIMIT, 0)
    assert plain.output_capacity == CAPACITY
    borrowed = read_elsewhere.borrow(0, 8, 16)
    assert shared.find(borrowed).offset_of(borrowed) == 8
    assert shared.find(plain.borrow(0, 8, 16)) is None
    removed = []
    shared.users.append(SimpleNamespace(forget_segment=removed.append))
    read_elsewhere.close()
    assert removed == [1]
    plain.close()


@pytest.mark.parametrize("successes", [0, 1])
def test_a_system_without_room_for_segments_is_named_and_nothing_stays_open(monkeypatch, successes):
    made: list[int] = []

    def create(name: str, capacity: int) -> Any:
        if len(made) == successes:
            raise OSError(12, "Cannot allocate memory")
        descriptor, capacity = create_memory(name, capacity)
        made.append(descriptor)
        return descriptor, capacity

    monkeypatch.setattr(instance, "create_memory", create)
    with pytest.raises(OutOfMemoryError) as caught:
        InstanceMemory("m_0_0", capacity=CAPACITY)
    assert str(caught.value) == (
        "cannot create shared memory for 'm_0_0': [Errno 12] Cannot allocate memory. "
        "Check the limits on address space (ulimit -v) and file size (ulimit -f)"
    )
    assert not any(map(is_open, made))
