"""Noticing that models stand still because their threads wait for calls which only these models could answer.

A call that the model's own thread makes tells so by itself (`engine.calls`). For calls of other threads only the guest
knows what else may let its model go on; so it is asked when a call has waited for a while. Answers are taken together:
a guest that stands still can only be moved by an answer to one of its calls, and that would show. It is asked twice,
because a thread that has just been woken looks as if it still waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from naiad.engine.served import ServedVersion
from naiad.errors import NaiadError
from naiad.scheduling.deadlock import deadlock_cycle, find_mutually_blocked
from naiad.workers.calls import Call
from naiad.workers.worker import Worker

PATIENCE_SECONDS = 0.75
"""How long calls may wait before anybody is asked, and the time between two rounds of questions."""


class OpenCall(Protocol):
    """What is needed of a call under way."""

    call: Call
    key: int
    version: ServedVersion


def refuse(call: OpenCall, ring: Sequence[Worker]) -> None:
    """Answer *call*, which waits for an instance, with an error that names the *ring* it closes."""
    names = " -> ".join(f"'{worker.spec.name}'" for worker in ring)
    error = NaiadError(
        f"Model {call.call.request.model_name} - Error when running inference: the call can never be answered, "
        f"as all instances that could wait on each other: {names}. Give one of these models more instances, or "
        "call from decoupled models whose execute returns meanwhile"
    )
    call.version.reject_waiting(call.key, error)


class StandstillWatch:
    """Asks guests, and answers a call with an error where nothing else ever will.

    Args:
        calls: All calls under way, by caller and number; kept up to date by its owner.
    """

    def __init__(self, calls: Mapping[Worker, Mapping[int, OpenCall]]) -> None:
        self._calls = calls
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0
        self._asked: dict[Worker, frozenset[int]] = {}  # those that have not answered, and their calls when asked
        self._standing: dict[Worker, frozenset[int]] = {}  # those that stand still, and their calls when asked
        self._stood: dict[Worker, frozenset[int]] = {}  # likewise, the time before

    def suspect(self) -> None:
        """A call waits for an instance: look at it after a while."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._look)

    def told(self, worker: Worker, number: str, *, is_so: bool) -> None:
        """A guest has answered whether it stands still."""
        if number != str(self._number) or worker not in self._asked:
            return
        calls = self._asked.pop(worker)
        if is_so:
            self._standing[worker] = calls
        if not self._asked:
            self._judge()

    def _look(self) -> None:
        self._timer = None
        waiting = [
            call for calls in self._calls.values() for call in calls.values() if call.version.is_waiting(call.key)
        ]
        self._stood, self._standing = self._standing, {}
        self._number += 1
        if not waiting:
            return
        self.suspect()  # again, as long as anything waits
        standing = find_mutually_blocked(self._servers([worker for worker in self._calls if worker.batches]))
        self._asked = {worker: frozenset(self._calls[worker]) for worker in standing}
        for worker in standing:
            worker.ask_standstill(self._number)

    def _judge(self) -> None:
        """Everybody has answered: where models stand still, let one call fail."""
        same = [
            worker
            for worker, numbers in self._standing.items()
            if numbers == self._stood.get(worker) == frozenset(self._calls.get(worker, ()))
        ]
        servers = self._servers(same)
        standing = find_mutually_blocked(servers)
        for worker in same:
            for call in self._calls[worker].values() if worker in standing else ():
                if call.version.is_waiting(call.key):
                    refuse(call, deadlock_cycle(worker, {each: servers[each] for each in standing}))
                    return

    def _servers(self, workers: Sequence[Worker]) -> dict[Worker, list[Collection[Worker]]]:
        return {
            worker: [servers for call in self._calls[worker].values() for servers in call.version.waits_of(call.key)]
            for worker in workers
        }
