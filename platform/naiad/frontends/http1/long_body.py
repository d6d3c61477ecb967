"""One long body while it is received: where its next bytes go, and what it counts in the budget.

A body announces its size before it sends anything, so the size alone allocates nothing. Memory of an instance is
reserved, and a large buffer taken, for a client that has shown that it sends: by an eighth of this body, or by an
earlier body of at least half its size on the same connection. Before that, bytes go into a buffer that grows with them.
What they hold is copied to the reserved memory as more arrives: an eighth of the body at most, and only for the first
body of a connection.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.frontends.body_buffers import BodyBuffer
from naiad.frontends.request_budget import Receiver
from naiad.frontends.request_memory import RequestMemory
from naiad.protocol.inference import Buffer

_TRUSTED_OF_THIS = 8
_TRUSTED_OF_EARLIER = 2
_UNTRUSTED = 1 << 18  # bytes that are expected of a body that is not trusted
_COPIED_WITH_READ = 2  # bytes copied with each byte read: the copy ends when a quarter of the body has arrived
_LEAST_COPIED = 1 << 18
_UNKNOWN = 1 << 62


def trusted_size(received: int, longest: int) -> int:
    """Bytes that a client is trusted to send after *received* of this body; *longest* is its longest one before."""
    return max(received * _TRUSTED_OF_THIS, longest * _TRUSTED_OF_EARLIER)


class LongBody:
    """A body that is received."""

    __slots__ = (
        "_buffer",
        "_buffered",
        "_copied",
        "_counted",
        "_memory",
        "_reserve",
        "_reserved",
        "_size",
        "charge",
        "received",
    )

    def __init__(
        self,
        size: int | None,  # its size in bytes; None where only its end will tell
        memory: RequestMemory,
        receiver: Receiver,
        *,
        trusted: int = 0,  # bytes that the client is trusted to send, see `trusted_size`
        reserve: Callable[[], memoryview | None] | None = None,  # None, or returning None, to use a buffer
    ) -> None:
        """A body before its first byte has arrived; OSError if the system refuses memory."""
        self.received = 0
        self._size = _UNKNOWN if size is None else size
        self._memory = memory
        self._counted = 0
        self._reserve = reserve
        self._reserved: memoryview | None = None
        # Bytes in the buffer when memory was reserved, and how many of them were copied to that.
        self._buffered = self._copied = 0
        self._buffer: BodyBuffer | None = None
        self.charge = memory.budget.open(receiver)
        if self._size <= trusted:
            self._use_reservation()
        if self._reserved is None:
            expected = self._size if self._size <= trusted else min(self._size, _UNTRUSTED)
            self._buffer = memory.buffers.take(expected, self._size)

    @property
    def is_complete(self) -> bool:
        return self.received == self._size

    def free(self) -> memoryview:
        """Where the next bytes go, no more than the budget has room for; OSError if the system refuses memory."""
        if self._reserved is not None:
            free = self._reserved[self.received :]
        else:
            assert self._buffer is not None
            free = self._buffer.free(self.received)[: self._size - self.received]
        room = self.charge.room
        return free if len(free) <= room else free[:room]

    def append(self, data: Buffer) -> bool:
        """Copy *data* behind what has arrived; return as `count`. OSError if the system refuses memory."""
        size = len(data)
        if self._reserved is not None:
            self._reserved[self.received : self.received + size] = data
        else:
            assert self._buffer is not None
            self._buffer.append(self.received, data)
        return self.count(size)

    def count(self, size: int) -> bool:
        """Count *size* bytes that were read into `free`; return whether to continue reading."""
        self.received += size
        if self._reserved is not None and self._buffer is not None:
            self._copy(max(size * _COPIED_WITH_READ, _LEAST_COPIED))
        if self._reserve is not None and trusted_size(self.received, 0) >= self._size and not self.is_complete:
            self._use_reservation()
        used = self.received
        if self._buffer is not None and self._reserved is None:
            # A buffer that was used before holds memory that its body has not filled yet.
            used = self._buffer.touched = max(self._buffer.touched, used)
        if used <= self._counted:
            return True
        counted, self._counted = self._counted, used
        return self.charge.add(used - counted)

    def finish(self) -> memoryview:
        """The complete body. What it counts stays counted until the charge is released."""
        self.charge.complete()
        if self._reserved is not None:
            if self._buffer is not None:
                self._copy(self.received)
            return self._reserved
        assert self._buffer is not None
        return self._buffer.first(self.received)

    def drop(self) -> None:
        self.charge.release()
        self._reserved = self._buffer = None

    def _use_reservation(self) -> None:
        if self._reserve is None:
            return
        self._reserved, self._reserve = self._reserve(), None
        if self._reserved is not None and self._buffer is not None:
            self._buffered = self.received
            self._copy(_LEAST_COPIED)

    def _copy(self, size: int) -> None:
        """Copy up to *size* bytes of the buffer to the reserved memory, and keep the buffer for others at its end."""
        assert self._buffer is not None
        assert self._reserved is not None
        end = min(self._copied + size, self._buffered)
        self._reserved[self._copied : end] = self._buffer.first(end)[self._copied :]
        self._copied = end
        if end == self._buffered:
            buffer, self._buffer = self._buffer, None
            buffer.release()
            self._memory.buffers.keep(buffer.map, buffer.touched)
