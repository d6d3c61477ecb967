"""GPU memory that guests share: what is held for whom, and which guests learn that another one has ended."""

from __future__ import annotations

from collections import deque

from naiad.guests.memory.device_bytes import DeviceBlock, DeviceRegions
from naiad.protocol.device_bytes import DeviceBytes

SIGN = 1 << 64


class Memory:
    """The memory of a guest, as the blocks in it see it."""

    def __init__(self) -> None:
        self.released: deque[int] = deque()
        self.has_large_released = False
        self.regions = DeviceRegions()

    def tensor(self, block: int = 5) -> DeviceBytes:
        """A tensor in GPU memory of this guest."""
        return DeviceBytes(b"gpu", b"handle", 0, 12, self.regions.exporter, DeviceBlock(block, self))


def test_a_region_is_released_as_a_signed_number_with_the_last_reference():
    memory = Memory()
    held = memory.tensor(SIGN - 3)
    part = held.first(4)
    del held
    assert not memory.released
    assert not memory.has_large_released
    del part
    assert list(memory.released) == [-3]
    assert memory.has_large_released


def test_a_tensor_is_kept_until_the_guest_releases_the_input_block():
    owner, reader = Memory(), Memory()
    reader.regions.hold(1, [owner.tensor(10), owner.tensor(11)])
    reader.regions.hold(1, [owner.tensor(12)])
    reader.regions.hold(2, [owner.tensor(13)])
    reader.regions.release(3)
    assert not owner.released
    reader.regions.release(1)
    assert sorted(block + SIGN for block in owner.released) == [10, 11, 12]
    reader.regions.release(1)
    reader.regions.release(2)
    assert len(owner.released) == 4


def test_guests_that_may_have_opened_memory_of_one_that_ends_are_to_close_it():
    owner, reader, other = Memory(), Memory(), Memory()
    reader.regions.open([owner.tensor(), owner.tensor()])
    owner.regions.close()
    assert reader.regions.importer.ended == [owner.regions.exporter.number]
    assert other.regions.importer.ended == owner.regions.importer.ended == []


def test_a_guest_that_ends_holds_nothing_any_more():
    owner, reader = Memory(), Memory()
    reader.regions.hold(1, [owner.tensor()])
    reader.regions.close()
    assert len(owner.released) == 1
