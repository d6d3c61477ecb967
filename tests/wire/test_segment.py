"""Blocks of a segment: never shared, exactly counted, and given back to the system."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from naiad_stub import segment as segment_module
from naiad_stub.segment import ALIGNMENT, Segment, align, block_size, create_memory

from naiad.core.errors import OutOfMemoryError
from naiad.guests.memory.instance import InstanceMemory

CAPACITY = 1 << 28


@contextlib.contextmanager
def segment(capacity: int = CAPACITY):
    descriptor, capacity = create_memory("test", capacity)
    made = Segment(descriptor, capacity)
    try:
        yield made, descriptor
    finally:
        made.close()
        os.close(descriptor)


def used(descriptor: int) -> int:
    """Bytes of memory behind the file."""
    return os.fstat(descriptor).st_blocks * 512


class Blocks(RuleBasedStateMachine):
    """Any order of reserving, writing, releasing and trimming, in a segment small enough to be full at times."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptor, capacity = create_memory("test", CAPACITY)
        # Small on purpose: create_memory makes nothing below 256 MiB, which tests would have to fill.
        self.segment = Segment(self.descriptor, min(capacity, 1 << 20))
        self.held: dict[int, tuple[int, bytes]] = {}
        self.count = 0

    def teardown(self) -> None:
        self.segment.close()
        os.close(self.descriptor)

    @rule(size=st.one_of(st.integers(1, 9000), st.integers(1, 700_000)))
    def reserve(self, size):
        offset = self.segment.allocate(size)
        if offset < 0:
            assert self.held, f"{size} bytes do not fit into an empty segment"
            return
        assert offset % ALIGNMENT == 0
        assert offset + size <= self.segment.capacity
        self.count += 1
        mark = self.count.to_bytes(4, "little")
        for place in (offset, offset + block_size(size) - 4):
            self.segment.view[place : place + 4] = mark
        self.held[offset] = (block_size(size), mark)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        offset = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[offset]
        assert self.segment.release(offset)
        assert not self.segment.release(offset), "a block was taken back twice"

    @rule()
    def trim(self):
        self.segment.trim()

    @invariant()
    def blocks_do_not_overlap(self):
        end = 0
        for offset, (size, _) in sorted(self.held.items()):
            assert offset >= end
            end = offset + size

    @invariant()
    def contents_stay(self):
        for offset, (size, mark) in self.held.items():
            assert bytes(self.segment.view[offset : offset + 4]) == mark
            assert bytes(self.segment.view[offset + size - 4 : offset + size]) == mark

    @invariant()
    def count_is_exact(self):
        assert self.segment.in_use == sum(size for size, _ in self.held.values())


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=60)


def test_blocks_waste_at_most_a_quarter():
    for size in (1, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1, (1 << 33) + 5):
        assert size <= block_size(size) <= max(4096, size * 1.25 + 4096)


def test_trimming_gives_all_pages_of_an_idle_segment_back():
    with segment() as (blocks, descriptor):
        offsets = [blocks.allocate(5 << 20) for _ in range(4)]
        for offset in offsets:
            blocks.view[offset : offset + (5 << 20)] = b"\1" * (5 << 20)
        assert used(descriptor) == 20 << 20
        for offset in offsets:
            blocks.release(offset)
        blocks.trim()
        assert used(descriptor) == 0
        assert blocks.trim() == 0


def test_trimming_spares_blocks_in_use():
    with segment() as (blocks, descriptor):
        kept, freed = blocks.allocate(1 << 20), blocks.allocate(1 << 20)
        blocks.view[kept : kept + (2 << 20)] = b"\1" * (2 << 20)
        blocks.release(freed)
        assert blocks.trim() == 1 << 20
        assert used(descriptor) == 1 << 20
        assert bytes(blocks.view[kept : kept + 4]) == b"\1" * 4


def test_trimming_with_a_time_limit_continues_where_it_ended_and_spares_new_blocks():
    with segment() as (blocks, descriptor):
        kept, *freed = [blocks.allocate(16 << 20) for _ in range(4)]
        for offset in (kept, *freed):
            blocks.view[offset : offset + (16 << 20)] = b"\1" * (16 << 20)
        for offset in freed:
            blocks.release(offset)
        assert blocks.trim(1e-9) == 0, "the time is over at once"
        assert blocks.has_untrimmed
        new = blocks.allocate(16 << 20)
        blocks.view[new : new + (16 << 20)] = b"\2" * (16 << 20)
        while blocks.has_untrimmed:
            blocks.trim(0.001)
        assert used(descriptor) == 32 << 20
        assert bytes(blocks.view[kept : kept + (16 << 20)]) == b"\1" * (16 << 20)
        assert bytes(blocks.view[new : new + (16 << 20)]) == b"\2" * (16 << 20)
        blocks.release(new)
        blocks.release(kept)
        blocks.trim(1e-9)
        assert (blocks.in_use, blocks.has_untrimmed) == (0, True)
        again = blocks.allocate(1 << 20)
        blocks.view[again : again + (1 << 20)] = b"\3" * (1 << 20)
        while blocks.has_untrimmed:
            blocks.trim(0.001)
        assert used(descriptor) == 1 << 20
        assert bytes(blocks.view[again : again + (1 << 20)]) == b"\3" * (1 << 20)


def test_trimming_that_never_has_the_time_for_all_of_a_segment_ends_in_the_end(monkeypatch):
    """Each one began anew: with 16 GiB, or on a slow machine, the calls for pages that were gone took all the time."""
    with segment() as (blocks, descriptor):
        kept, *freed = [blocks.allocate(16 << 20) for _ in range(4)]
        blocks.view[: 64 << 20] = b"\1" * (64 << 20)
        for offset in freed:
            blocks.release(offset)
        seconds = itertools.count()
        monkeypatch.setattr("naiad_stub.segment.time.perf_counter", lambda: next(seconds))
        assert [blocks.trim(2) for _ in range(6)] == [0] * 5 + [48 << 20], "two of twelve steps each"
        assert (used(descriptor), blocks.has_untrimmed) == (16 << 20, False)
        assert bytes(blocks.view[kept : kept + (16 << 20)]) == b"\1" * (16 << 20)


def test_segment_cut_into_other_sizes_still_takes_what_fits():
    """Blocks keep their size while there is room; without any, free neighbours become one."""
    with segment() as (blocks, descriptor):
        offsets = [blocks.allocate(8 << 20) for _ in range(CAPACITY >> 23)]
        assert blocks.allocate(1) == -1
        for offset in offsets[1:]:
            blocks.view[offset : offset + 4096] = b"\1" * 4096
            blocks.release(offset)
        whole = blocks.allocate(192 << 20)
        assert whole >= 8 << 20
        blocks.release(whole)
        blocks.release(offsets[0])
        assert blocks.allocate(CAPACITY) == 0
        blocks.release(0)
        blocks.trim()
        assert used(descriptor) == 0


def test_other_side_can_neither_cut_nor_grow_the_file():
    """A model that did would kill the server: reading behind the end of a mapped file is a bus error."""
    with segment() as (_, descriptor):
        for size in (0, CAPACITY * 2):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)


def test_unlinked_file_serves_where_memfd_is_missing_or_forbidden(monkeypatch):
    def forbidden(*_: object) -> int:
        raise PermissionError(1, "not in this sandbox")

    monkeypatch.setattr(segment_module.os, "memfd_create", forbidden)
    with segment() as (blocks, descriptor):
        assert os.fstat(descriptor).st_nlink == 0
        offset = blocks.allocate(4096)
        blocks.view[offset : offset + 4] = b"data"
        blocks.release(offset)
        blocks.trim()
    monkeypatch.delattr(segment_module.os, "memfd_create")
    with segment() as (blocks, descriptor):
        assert os.fstat(descriptor).st_nlink == 0


def test_capacity_is_halved_until_the_system_agrees():
    """`ulimit -v`, as shared machines set it."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "from naiad_stub.segment import create_memory; print(create_memory('test')[1])"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert CAPACITY <= int(result.stdout) < 8 << 30


def test_memory_that_cannot_be_had_is_refused_with_the_limits_to_look_at(monkeypatch):
    gc.collect()  # files that earlier tests have left in cycles might be closed below
    before = len(list(Path("/proc/self/fd").iterdir()))
    made = []

    def first_only(name: str, capacity: int) -> tuple[int, int]:
        if made:
            raise OSError(12, "Cannot allocate memory")
        made.append(name)
        return create_memory(name, capacity)

    monkeypatch.setattr("naiad.guests.memory.instance.create_memory", first_only)
    with pytest.raises(OutOfMemoryError, match=r"cannot create shared memory for 'm_0_0'.*ulimit -v.*ulimit -f"):
        InstanceMemory("m_0_0")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_next_tensor_starts_at_a_cache_line():
    assert [align(offset) for offset in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
    assert resource.getpagesize() % ALIGNMENT == 0


def test_a_closed_segment_is_unmapped_with_its_last_view_although_the_segment_itself_is_referenced():
    """A guest that ended is part of reference cycles, which a server collects after minutes or hours."""
    name = f"naiad-kept-{os.getpid()}"
    descriptor, capacity = create_memory(name, CAPACITY)
    made = Segment(descriptor, capacity)
    os.close(descriptor)
    block = made.allocate(5000)
    part = made.view[block : block + 5000]
    part[:4] = b"data"

    def is_mapped():
        return name in Path("/proc/self/maps").read_text()

    made.close()
    assert bytes(part[:4]) == b"data"
    assert is_mapped()
    made.release(block)
    assert made.trim() == 0, "there is nothing left to trim"
    del part
    assert not is_mapped()
    made.close()


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (0, 4096),
        (1, 4096),
        (4096, 4096),
        (4097, 8192),
        (5 << 20, 5 << 20),
        ((5 << 20) + 1, 6 << 20),
        ((7 << 20) + 1, 8 << 20),
        ((8 << 20) + 1, 10 << 20),
        ((14 << 20) + 1, 16 << 20),
    ],
)
def test_blocks_have_four_sizes_for_each_doubling(size, block):
    assert block_size(size) == block


def test_a_trim_forgets_the_sizes_of_an_earlier_load():
    with segment() as (made, _):
        for offset in [made.allocate(2 * 4096), made.allocate(3 * 4096)]:
            made.release(offset)
        made.trim()
        assert [made.allocate(3 * 4096), made.allocate(2 * 4096)] == [0, 3 * 4096]


@pytest.mark.parametrize(("limit", "reached"), [(1 << 40, 4 << 30), (3 << 30, 2 << 30), (1 << 28, 1 << 28)])
def test_memory_is_halved_until_the_system_allows_it(monkeypatch, limit, reached):
    truncate = os.ftruncate

    def limited(descriptor, size):
        if size > limit:
            raise OSError(27, "File too large")
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", limited)
    descriptor, capacity = create_memory("test", 4 << 30)
    os.close(descriptor)
    assert capacity == reached


def test_memory_of_less_than_256_mib_is_refused(monkeypatch):
    seen = []

    def limited(descriptor, size):
        seen.append((descriptor, size))
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "ftruncate", limited)
    with pytest.raises(OSError, match="File too large"):
        create_memory("test", 1 << 30)
    assert [size for _, size in seen] == [1 << 30, 1 << 29, 1 << 28]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0][0])


def test_discarded_bytes_read_as_zeros_and_a_closed_segment_is_left_alone():
    with segment() as (made, _):
        made.view[: 3 * 4096] = b"x" * (3 * 4096)
        made.discard(4096, 4096)
        assert bytes(made.view[: 3 * 4096]) == b"x" * 4096 + bytes(4096) + b"x" * 4096
        made.close()
        made.discard(0, 4096)
