"""Reserved parts of an input segment: where they may be, which tensors they can serve, and when their blocks are free."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from naiad_stub.segment import ALIGNMENT, Segment, create_memory

from naiad.guests.memory.reservations import InputReservations

CAPACITY = 1 << 20
PAGE = 4096
SHARE = CAPACITY // 8


@pytest.fixture
def segment():
    descriptor, capacity = create_memory("reservations", CAPACITY)
    made = Segment(descriptor, capacity)
    os.close(descriptor)
    yield made
    made.close()


@pytest.fixture
def reservations(segment):
    return InputReservations(segment)


def test_the_first_tensor_of_a_body_is_aligned(segment, reservations):
    for ahead in (0, 1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 3):
        body = reservations.reserve(500, ahead)
        assert len(body) == 500
        [reservation] = reservations.waiting.values()
        assert (reservation.start + ahead) % ALIGNMENT == 0
        assert 0 <= reservation.start - reservation.block < ALIGNMENT
        body[:] = b"x" * 500
        assert segment.view[reservation.start : reservation.start + 500] == body
        assert segment.view[reservation.start + 500] == 0
        body[:] = bytes(500)
        del body
        reservations.free_dropped()
        assert segment.in_use == 0


def test_a_body_may_fill_an_eighth_of_the_segment_together_with_what_is_in_use(segment, reservations):
    block = segment.allocate(2 * PAGE)
    held = reservations.reserve(SHARE - 2 * PAGE, 0)
    assert held is not None
    assert reservations.reserve(1, 0) is None
    del held
    assert reservations.reserve(SHARE - 2 * PAGE + 1, 0) is None
    segment.release(block)
    assert reservations.reserve(SHARE, 0) is not None


def test_a_body_without_room_is_not_reserved():
    fragmented = SimpleNamespace(in_use=0, capacity=CAPACITY, allocate=lambda size: -1)
    reservations = InputReservations(fragmented)
    assert reservations.reserve(SHARE, 0) is None
    assert not reservations.waiting


def test_memory_that_is_dropped_before_a_request_claims_it_is_free(segment, reservations):
    first, second = reservations.reserve(100, 0), reservations.reserve(100, 0)
    part = first[10:20]
    del first
    assert not reservations.dropped
    assert len(reservations.waiting) == 2
    del part
    assert len(reservations.dropped) == 1
    assert len(reservations.waiting) == 1
    reservations.free_dropped()
    assert segment.in_use == 2 * PAGE - PAGE
    assert not reservations.dropped
    del second


def test_a_reservation_first_frees_what_was_dropped(segment, reservations):
    del_me = reservations.reserve(SHARE - PAGE, 0)
    del del_me
    assert reservations.reserve(SHARE - PAGE, 0) is not None
    assert segment.in_use <= 2 * SHARE


def test_tensors_are_claimed_where_they_are(segment, reservations):
    body = reservations.reserve(1000, 40)
    [reservation] = reservations.waiting.values()
    body[40:] = bytes(range(200)) * 4 + bytes(160)
    tensors = [body[40:140], body[40 + 128 : 40 + 192], body[40 + 192 : 1000]]
    block, start = reservations.claim(tensors, [0, 128, 192])
    assert block == reservation.block
    assert start == reservation.start + 40
    assert segment.view[start : start + 100] == tensors[0]
    assert list(reservations.sent) == [block]
    # A second time, as for a retry, they are copied: the guest may have written to them.
    assert reservations.claim(tensors, [0, 128, 192]) is None


def test_claimed_memory_is_free_when_neither_request_nor_guest_refers_to_it(segment, reservations):
    body = reservations.reserve(1000, 0)
    block, _ = reservations.claim([body], [0])
    del body
    assert not reservations.dropped
    del reservations.sent[block]
    assert list(reservations.dropped) == [block]

    body = reservations.reserve(1000, 0)
    block, _ = reservations.claim([body], [0])
    reservations.close()
    assert not reservations.dropped
    del body
    assert list(reservations.dropped) == [block]
    assert not reservations.waiting


def test_tensors_at_other_places_are_not_claimed(reservations):
    body, other = reservations.reserve(1000, 0), reservations.reserve(1000, 0)
    left = body[:64], body[128:192]
    assert reservations.claim([], []) is None
    assert reservations.claim([b"bytes"], [0]) is None
    assert reservations.claim([bytes(64), body[:64]], [0, 0]) is None
    assert reservations.claim([memoryview(bytearray(64))], [0]) is None  # of other memory
    assert reservations.claim([body[1:65]], [0]) is None  # not aligned
    assert reservations.claim(left, [0, 64]) is None  # at another distance
    assert reservations.claim([body[128:192], body[:64]], [0, 128]) is None  # in another order
    assert reservations.claim([body[:64], other[128:192]], [0, 128]) is None  # of another reservation
    assert reservations.claim([body[:64], bytes(64)], [0, 128]) is None
    assert reservations.claim([body[:64], memoryview(bytearray(64))], [0, 128]) is None
    assert len(reservations.waiting) == 2
    assert not reservations.sent
    with pytest.raises(ValueError, match="shorter"):
        reservations.claim(left, [0])
    assert reservations.claim(left, [0, 128]) is not None
    assert len(reservations.waiting) == 1
