"""How much each process of the server has to do for each model, where all of them can read it.

A row is one loaded version, a column one process: how many requests it has, and how many instances can serve them. Each
process writes its own column, and adds what it sends to that of another one, which corrects it. What is read may be a
moment old, which costs one request a little time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from types import MappingProxyType

from naiad.engine.lifecycle.sharing import is_better_elsewhere

_ROWS = 1 << 16
_NUMBER = 4
NOTHING_SENT: Mapping[int, int] = MappingProxyType({})


class LoadTable:
    """The loads of all versions in all processes."""

    def __init__(self, descriptor: int, processes: int, own: int) -> None:
        """Map a table of `create`, whose *descriptor* is owned from now on; *own* is the number of this process."""
        self.descriptor = descriptor  # the memory, for the other processes
        self.processes = processes
        self._own = own
        self._memory = memoryview(mmap.mmap(descriptor, 2 * _NUMBER * _ROWS * processes)).cast("I")
        self._instances = _ROWS * processes  # where the second table begins
        self._free = list(range(_ROWS - 1, -1, -1))

    @classmethod
    def create(cls, processes: int) -> LoadTable:
        """A new table, of the coordinator. Rows that are not in use take no memory."""
        descriptor = os.memfd_create("naiad-loads")
        os.ftruncate(descriptor, 2 * _NUMBER * _ROWS * processes)
        return cls(descriptor, processes, 0)

    def take_row(self) -> int:
        row = self._free.pop()
        for process in range(self.processes):
            self.clear(row, process)
        return row

    def free_row(self, row: int) -> None:
        """The version has ended in all processes."""
        self._free.append(row)

    def clear(self, row: int, process: int) -> None:
        cell = row * self.processes + process
        self._memory[cell] = self._memory[self._instances + cell] = 0

    def note_requests(self, row: int, count: int) -> None:
        self._memory[row * self.processes + self._own] = count

    def note_sent(self, row: int, process: int) -> None:
        """This process has sent a request to another one, which says how many it has once it has read it."""
        self._memory[row * self.processes + process] += 1

    def note_instances(self, row: int, count: int) -> None:
        self._memory[self._instances + row * self.processes + self._own] = count

    def requests_elsewhere(self, row: int) -> int:
        first = row * self.processes
        return sum(self._memory[first : first + self.processes]) - self._memory[first + self._own]

    def better_process(
        self, row: int, requests: int, instances: int, sent: Mapping[int, int] = NOTHING_SENT
    ) -> int | None:
        """The process that a request is better off in than in this one; None for none.

        *requests* and *instances* are those of this process, as far as the latter can serve; *sent* is how many
        requests this process has sent to each other one, which may not have read them yet.
        """
        first, memory, shift = row * self.processes, self._memory, self._instances
        found: tuple[float, int, int, int] | None = None
        for process in range(self.processes):
            count = memory[shift + first + process]
            if count and process != self._own:
                waiting = max(memory[first + process], sent.get(process, 0))
                candidate = waiting / count, process, waiting, count
                found = candidate if found is None else min(found, candidate)
        if found is None or not is_better_elsewhere(requests, instances, *found[2:]):
            return None
        return found[1]

    def idle_process(self, row: int, sent: Mapping[int, int] = NOTHING_SENT) -> int | None:
        """A process other than this one with an idle instance; None without one."""
        first, memory, shift = row * self.processes, self._memory, self._instances
        for process in range(self.processes):
            count = memory[shift + first + process]
            if process != self._own and count > max(memory[first + process], sent.get(process, 0)):
                return process
        return None

    def serving_processes(self, row: int) -> list[int]:
        """The processes other than this one with instances that can serve now."""
        first = self._instances + row * self.processes
        return [each for each in range(self.processes) if each != self._own and self._memory[first + each]]

    def close(self) -> None:
        mapped = self._memory.obj
        self._memory.release()
        assert isinstance(mapped, mmap.mmap)
        mapped.close()
        os.close(self.descriptor)
