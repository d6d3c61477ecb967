"""Tensors in GPU memory: what is held for whom, and which guests learn that another one has ended."""

from __future__ import annotations

from collections import deque

import numpy as np

from naiad.guests.memory.device_bytes import DeviceBytes, DeviceRegions, as_data, device_bytes, on_device


class Memory:
    """The memory of a guest, as the bytes in it see it."""

    def __init__(self) -> None:
        self.released: deque[int] = deque()
        self.has_large_released = False
        self.regions = DeviceRegions()


def tensor(memory: Memory, block: int = 5, size: int = 12) -> DeviceBytes:
    return DeviceBytes(b"gpu", b"handle", size, block, memory)


def test_a_tensor_has_the_length_of_its_bytes_and_a_number_of_its_own():
    memory = Memory()
    first, second = tensor(memory), tensor(memory, size=0)
    assert (len(first), len(second)) == (12, 0)
    assert first.serial != second.serial
    assert (first.uuid, first.handle, first.memory) == (b"gpu", b"handle", memory)


def test_a_region_is_released_as_a_signed_number_with_the_last_reference():
    memory = Memory()
    held = tensor(memory, block=(1 << 64) - 3)
    assert not memory.released
    assert not memory.has_large_released
    del held
    assert list(memory.released) == [-3]
    assert memory.has_large_released


def test_a_tensor_is_kept_until_the_guest_releases_the_input_block():
    owner, reader = Memory(), Memory()
    reader.regions.hold(1, [tensor(owner, 10), tensor(owner, 11)])
    reader.regions.hold(1, [tensor(owner, 12)])
    reader.regions.hold(2, [tensor(owner, 13)])
    assert not owner.released
    reader.regions.release(3)
    assert not owner.released
    reader.regions.release(1)
    assert sorted(block + (1 << 64) for block in owner.released) == [10, 11, 12]
    reader.regions.release(1)
    reader.regions.release(2)
    assert len(owner.released) == 4


def test_guests_that_read_memory_of_one_that_ends_are_to_close_it():
    owner, reader, other = Memory(), Memory(), Memory()
    assert len({owner.regions.number, reader.regions.number, other.regions.number}) == 3
    reader.regions.hold(1, [tensor(owner), tensor(owner)])
    owner.regions.close()
    assert reader.regions.ended == [owner.regions.number]
    assert other.regions.ended == owner.regions.ended == []
    owner.regions.close()
    assert reader.regions.ended == [owner.regions.number]


def test_a_guest_that_ends_holds_nothing_any_more():
    owner, reader = Memory(), Memory()
    reader.regions.hold(1, [tensor(owner)])
    reader.regions.close()
    assert len(owner.released) == 1


def test_tensors_in_gpu_memory_are_told_from_bytes():
    found = tensor(Memory())
    assert device_bytes(as_data(found)) is found
    assert as_data(found) is found
    assert device_bytes(b"bytes") is None
    assert device_bytes(memoryview(np.zeros(2, np.uint8))) is None
    assert on_device([b"", as_data(found), memoryview(b"x"), as_data(found)]) == [(1, found), (3, found)]
    assert on_device([b"bytes"]) == []
