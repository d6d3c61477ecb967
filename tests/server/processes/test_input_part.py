"""A process's part of a segment: where inputs are put, and when their place is free."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from naiad_stub.segment import create_memory
from server.processes.pair import request

from naiad.protocol.inference import InputTensor
from naiad.server.processes.input_part import InputPart

SIZE = 1 << 20


@pytest.fixture
def part() -> Iterator[InputPart]:
    descriptor, _ = create_memory("naiad-part", 2 * SIZE)
    made = InputPart(3, descriptor, SIZE, SIZE, 1)
    os.close(descriptor)
    yield made
    made.close()


def tensors(*data: bytes | memoryview) -> list[InputTensor]:
    (like,) = request("m").inputs
    return [InputTensor(f"X{number}", like.datatype, (len(each) // 4,), each) for number, each in enumerate(data)]


def test_inputs_are_copied_to_their_offsets_and_their_place_is_used_again(part: InputPart) -> None:
    start = part.place(tensors(b"abcd", b"efgh"), (0, 64), 68)
    view = part._segment.view
    assert bytes(view[start : start + 4]) == b"abcd"
    assert bytes(view[start + 64 : start + 68]) == b"efgh"
    assert part.in_use
    part.free(start)
    assert part.in_use == 0
    assert part.place(tensors(b"abcd"), (0,), 4) == start
    part.free(start)


def test_a_body_that_was_read_into_the_part_stays_where_it_is(part: InputPart) -> None:
    room = part.reserve(256, 0)
    assert room is not None
    room[:4] = b"body"
    (tensor,) = tensors(room)
    start = part.place([tensor], (0,), 256)
    used = part.in_use
    assert bytes(part._segment.view[start : start + 4]) == b"body"
    room[:4] = b"same"
    assert bytes(part._segment.view[start : start + 4]) == b"same"
    part.free(start)
    assert part.in_use == used, "it is still referred to"
    del room, tensor
    part.trim()
    assert part.in_use == 0


def test_another_request_is_copied_while_a_reserved_body_waits(part: InputPart) -> None:
    room = part.reserve(256, 0)
    assert room is not None
    start = part.place(tensors(b"abcd"), (0,), 4)
    assert bytes(part._segment.view[start : start + 4]) == b"abcd"
    part.free(start)
    del room
    part.trim()
    assert part.in_use == 0


def test_copies_that_the_caller_makes_are_not_made_here(part: InputPart) -> None:
    copies: list[tuple[memoryview, bytes]] = []
    start = part.place(tensors(b"abcd", b"efgh"), (0, 64), 68, copies)  # type: ignore[arg-type]
    assert bytes(part._segment.view[start : start + 4]) == bytes(4)
    for target, data in copies:
        target[:] = data
    assert bytes(part._segment.view[start + 64 : start + 68]) == b"efgh"
    part.free(start)


def test_inputs_for_which_there_is_no_room_are_refused_and_a_failed_copy_keeps_none(part: InputPart) -> None:
    assert part.place(tensors(bytes(8)), (0,), 2 * SIZE) == -1
    with pytest.raises(ValueError, match="zip"):
        part.place(tensors(bytes(8)), (0, 8), 16)
    assert part.in_use == 0


def test_pages_of_freed_inputs_are_given_back(part: InputPart) -> None:
    start = part.place(tensors(b"x" * 65536), (0,), 65536)
    part.free(start)
    while part.trim():
        pass
    assert bytes(part._segment.view[start : start + 8]) == bytes(8)


def test_inputs_take_the_place_of_a_body_that_was_dropped(part: InputPart) -> None:
    room = part.reserve(100_000, 0)
    assert room is not None
    del room
    start = part.place(tensors(bytes(8)), (0,), 100_000)
    assert 100_000 <= part.in_use < 200_000
    part.free(start)
