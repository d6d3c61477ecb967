"""Buffers that request bodies are received into: mapped memory that grows with what arrives and is used again.

A mapping has three properties that a bytearray lacks. Its pages cost nothing until they are written to. It grows
without a copy, since the kernel moves its page table entries. And freeing it returns it to the system, while pieces of
the heap may stay with the process; a long one is freed on a thread.

Memory that is touched for the first time costs a page fault for each 4 KiB, more than everything else that is done with
a long body. So buffers are kept for a few seconds for later bodies (`BodyBuffers`).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from naiad.core.heap import FREED_APART, discard_on_thread

_FIRST = 1 << 18  # Bytes of a new buffer. Larger ones could get huge pages, so that one byte would cost 2 MiB.
_GROWTH = 4
_POOLED = 64 << 20  # bytes of all kept buffers together
_IDLE_TICKS = 10
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class _Mapped(mmap.mmap):
    """Mapped memory that leaves its pages to a thread, if it is long. It is finalized when no view of it is left."""

    def __del__(self) -> None:
        if not self.closed and len(self) >= FREED_APART:
            discard_on_thread(self)


class BodyBuffer:
    """A buffer that grows."""

    __slots__ = ("_limit", "_view", "map", "touched")

    def __init__(self, mapped: mmap.mmap, touched: int, limit: int) -> None:
        """A buffer that will not need more than *limit* bytes."""
        self.map = mapped
        self.touched = touched  # bytes that were written to by this body or an earlier one, and so use memory
        self._limit = limit
        self._view = memoryview(mapped)

    def free(self, filled: int) -> memoryview:
        """The part behind *filled* bytes; at least one byte, since the buffer grows if it is full."""
        if filled >= len(self._view):
            self._grow(filled + 1)
        return self._view[filled:]

    def append(self, filled: int, data: bytes | bytearray | memoryview) -> None:
        end = filled + len(data)
        if end > len(self._view):
            self._grow(end)
        self._view[filled:end] = data

    def first(self, count: int) -> memoryview:
        return self._view[:count]

    def release(self) -> None:
        """Drop the buffer's own reference to its memory."""
        self._view.release()

    def _grow(self, needed: int) -> None:
        size = max(min(len(self.map) * _GROWTH, self._limit), needed)
        self._view.release()
        try:
            self.map.resize(size)
        except (BufferError, SystemError):  # the socket's reader still refers to it, or the system cannot
            grown = _Mapped(-1, size, flags=_FLAGS)
            with memoryview(self.map) as filled, memoryview(grown) as all_of_it:
                all_of_it[: len(filled)] = filled
            self.map = grown
        self._view = memoryview(self.map)


class BodyBuffers:
    """Kept buffers, shared by the connections of one event loop."""

    def __init__(self, on_kept: Callable[[], None] = lambda: None) -> None:
        """Without buffers; *on_kept* is called when one is kept: call `on_tick` from then on until it returns False."""
        self._on_kept = on_kept
        # The one used last is at the end: its pages are most likely in the cache.
        self._kept: list[tuple[mmap.mmap, int, int]] = []
        self._tick = 0

    @property
    def kept_size(self) -> int:
        return sum(touched for _, touched, _ in self._kept)

    def take(self, expected: int, limit: int) -> BodyBuffer:
        """A buffer for a body of *expected* bytes, and of *limit* at most; OSError if the system refuses memory."""
        while (index := self._find(expected)) >= 0:
            mapped, touched, _ = self._kept.pop(index)
            try:
                mapped.resize(len(mapped))  # fails while anything, such as a tensor, still refers to it
            except BufferError:
                continue
            except SystemError:  # not on this system; the check for references comes first
                pass
            return BodyBuffer(mapped, touched, limit)
        return BodyBuffer(_Mapped(-1, min(expected, _FIRST), flags=_FLAGS), 0, limit)

    def _find(self, expected: int) -> int:
        """The index of the buffer used last that is large enough, or else of one that has to grow; -1 for none.

        Much larger ones do not count: a small body would hold their memory.
        """
        smaller = -1
        for index in range(len(self._kept) - 1, -1, -1):
            size = len(self._kept[index][0])
            if expected <= size <= expected * _GROWTH:
                return index
            if size < expected and smaller < 0:
                smaller = index
        return smaller

    def keep(self, mapped: mmap.mmap, touched: int) -> None:
        """Keep a buffer for later bodies, if there is room. The caller drops all references to it."""
        size = len(mapped)
        while self._kept and sum(len(kept) for kept, _, _ in self._kept) + size > _POOLED:
            del self._kept[0]
        if size <= _POOLED:
            self._kept.append((mapped, touched, self._tick))
            self._on_kept()

    def on_tick(self) -> bool:
        """Free the buffers that have been idle for ten ticks, five seconds; return whether any is kept."""
        self._tick += 1
        self._kept = [kept for kept in self._kept if self._tick - kept[2] <= _IDLE_TICKS]
        return bool(self._kept)
