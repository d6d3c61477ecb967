"""How many client connections each process has, where all of them can read it: limits hold for the whole server.

Each process writes its own part, before it reads those of the others: two that accept at the same time may both refuse,
and never both accept the last connection. An address has a row in the part of each process with connections from it.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b

__all__ = ["ConnectionBoard"]

_NUMBER = 8
_ROWS = 1 << 17
"""More than twice as many as a process has connections. Rows that are not used take no memory."""
_WINDOW = 32
"""Rows in which an address is looked for, beginning with that of its hash."""
_PLACES = _ROWS + _WINDOW


class ConnectionBoard:
    """The open connections of all processes, in all and by address; see `naiad.frontends.open_connections.OtherCounts`.

    Attributes:
        descriptor: The memory, for the other processes.
        processes: Number of processes.
    """

    def __init__(self, descriptor: int, processes: int, own: int) -> None:
        """Map a board.

        Args:
            descriptor: See `create`; it is owned from now on.
            processes: Number of processes.
            own: Number of this process.
        """
        self.descriptor = descriptor
        self.processes = processes
        self._own = own
        self._map = mmap.mmap(descriptor, _size(processes))
        self._memory = memoryview(self._map).cast("Q")
        self._keys: dict[str, int] = {}

    @classmethod
    def create(cls, processes: int) -> ConnectionBoard:
        """A new board, of the coordinator."""
        descriptor = os.memfd_create("naiad-connections")
        os.ftruncate(descriptor, _size(processes))
        return cls(descriptor, processes, 0)

    def note_open(self, count: int) -> int:
        """This process has *count* connections; return how many the others have, 0 after `close`."""
        if self.descriptor < 0:
            return 0
        self._memory[self._own] = count
        return sum(self._memory[: self.processes]) - self._memory[self._own]

    def note_address(self, address: str, count: int) -> int:
        """This process has *count* connections from an address; return how many the others have, 0 after `close`."""
        if self.descriptor < 0:
            return 0
        key = self._keys.get(address) or _key(address)
        if count:
            self._keys[address] = key
        else:
            self._keys.pop(address, None)
        place = key % _ROWS
        self._note(place, key, count)
        return sum(self._count(process, place, key) for process in range(self.processes) if process != self._own)

    def clear(self, process: int) -> None:
        """A process has ended, and its connections with it."""
        if self.descriptor < 0:
            return
        self._memory[process] = 0
        counts = self._first(process) + _PLACES
        for row, count in enumerate(self._memory[counts : counts + _PLACES].tolist(), counts):
            if count:
                self._memory[row] = 0

    def close(self) -> None:
        """Unmap it."""
        if self.descriptor >= 0:
            self._memory.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1

    def _first(self, process: int) -> int:
        return self.processes + process * 2 * _PLACES

    def _note(self, place: int, key: int, count: int) -> None:
        first = self._first(self._own) + place
        keys = self._memory[first : first + _WINDOW].tolist()
        counts = self._memory[first + _PLACES : first + _PLACES + _WINDOW].tolist()
        found = next((row for row in range(_WINDOW) if keys[row] == key), None)
        if found is None:
            found = next((row for row in range(_WINDOW) if not counts[row]), None)
        if found is not None:  # else the others do not know of it, which is as unlikely as 32 equal rows of 131,072
            self._memory[first + _PLACES + found] = 0  # not of the address that had the row before
            self._memory[first + found] = key
            self._memory[first + _PLACES + found] = count

    def _count(self, process: int, place: int, key: int) -> int:
        first = self._first(process) + place
        keys = self._memory[first : first + _WINDOW].tolist()
        return self._memory[first + _PLACES + keys.index(key)] if key in keys else 0


def _size(processes: int) -> int:
    return _NUMBER * (processes + processes * 2 * _PLACES)


def _key(address: str) -> int:
    """Of 64 bits, and never 0, which is that of an empty row."""
    return int.from_bytes(blake2b(address.encode(), digest_size=_NUMBER).digest(), "little") or 1
