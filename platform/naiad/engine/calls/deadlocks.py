"""Detects calls between models that can never be answered, and rejects one of them so that the others can.

Instances deadlock when each waits for a call that only the others could answer. There are two kinds of waiting, and
the host sees one of them by itself:

- **The model's own thread waits for its call** (`ModelCall.is_blocking`). The instance does nothing else until the call
  is answered. The host knows this from the call itself, so `ModelCalls` looks for a cycle as soon as such a call has to
  wait for an instance, and rejects the call that closes it.
- **Other threads of the model wait for calls.** The main thread may return at any time, and then the instance takes
  the next request. Only the guest knows whether any of its threads can still run. `DeadlockDetector` therefore asks.

One round of the detector, while any call waits for an instance:

1. It takes the calling instances that execute something and collects which instances could answer their calls. Those
   that could be blocked mutually (`find_mutually_blocked`) are asked whether they are stalled: whether all their
   threads wait for calls. Nothing is asked where a cycle is impossible.
2. After all have replied, it keeps the instances that were stalled in this round *and* the one before, with the same
   calls in flight. Two rounds are needed because a thread that was just woken still looks as if it waited. In a true
   deadlock nothing can change in between: only a result would wake a thread, and a result ends a call.
3. If those instances still block each other mutually, one of their waiting calls is rejected. The others get their
   turn then, or the next round rejects another call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from naiad.core.errors import NaiadError
from naiad.engine.scheduling.deadlock import deadlock_cycle, find_mutually_blocked
from naiad.engine.served import Target
from naiad.guests.calls import ModelCall
from naiad.guests.worker import Worker

__all__ = ["ROUND_SECONDS", "CallInFlight", "DeadlockDetector", "reject_deadlocked"]

ROUND_SECONDS = 0.75
"""How long a call may wait for an instance before guests are asked, and the time between two rounds."""


class CallInFlight(Protocol):
    """What the detector needs of a call.

    Attributes:
        call: The call.
        key: Key of its request at the version called.
        version: That version.
    """

    call: ModelCall
    key: int
    version: Target


def reject_deadlocked(call: CallInFlight, cycle: Sequence[Worker]) -> None:
    """Answer *call*, which waits for an instance, with an error that names the instances of the *cycle*."""
    names = " -> ".join(f"'{worker.spec.name}'" for worker in cycle)
    error = NaiadError(
        f"Model {call.call.request.model_name} - Error when running inference: the call can never be answered, "
        f"as all instances that could wait on each other: {names}. Give one of these models more instances, or "
        "call from decoupled models whose execute returns meanwhile"
    )
    call.version.reject_waiting(call.key, error)


class DeadlockDetector:
    """Asks guests whether they are stalled, and rejects a call where nothing else can end the deadlock."""

    def __init__(self, calls: Mapping[Worker, Mapping[int, CallInFlight]]) -> None:
        """Make a detector that is idle.

        Args:
            calls: All calls in flight, by calling worker and number. The owner keeps them up to date.
        """
        self._calls = calls
        self._timer: asyncio.TimerHandle | None = None
        self._round = 0  # replies to earlier rounds are ignored
        # Workers by what is known of them in a round, each with the numbers of its calls when it was asked.
        self._asked: dict[Worker, frozenset[int]] = {}
        self._stalled: dict[Worker, frozenset[int]] = {}
        self._stalled_before: dict[Worker, frozenset[int]] = {}

    def start_watching(self) -> None:
        """Begin a round after a while, because a call waits for an instance; no effect if one is due."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROUND_SECONDS, self._begin_round)

    def on_stalled_reply(self, worker: Worker, round_number: str, *, is_stalled: bool) -> None:
        """A guest has replied whether it is stalled."""
        if round_number != str(self._round) or worker not in self._asked:
            return
        calls = self._asked.pop(worker)
        if is_stalled:
            self._stalled[worker] = calls
        if not self._asked:
            self._end_round()

    def _begin_round(self) -> None:
        self._timer = None
        is_any_waiting = any(
            call.version.is_waiting(call.key) for calls in self._calls.values() for call in calls.values()
        )
        self._stalled_before, self._stalled = self._stalled, {}
        self._round += 1
        if not is_any_waiting:
            return
        self.start_watching()  # the next round, for as long as a call waits
        suspects = find_mutually_blocked(self._answerers_of([worker for worker in self._calls if worker.batches]))
        self._asked = {worker: frozenset(self._calls[worker]) for worker in suspects}
        for worker in suspects:
            worker.query_blocked(self._round)

    def _end_round(self) -> None:
        """Reject one call if guests were stalled in two rounds with the same calls, and block each other."""
        unchanged = [
            worker
            for worker, numbers in self._stalled.items()
            if numbers == self._stalled_before.get(worker) == frozenset(self._calls.get(worker, ()))
        ]
        answerers = self._answerers_of(unchanged)
        deadlocked = find_mutually_blocked(answerers)
        for worker in unchanged:
            for call in self._calls[worker].values() if worker in deadlocked else ():
                if call.version.is_waiting(call.key):
                    reject_deadlocked(call, deadlock_cycle(worker, {each: answerers[each] for each in deadlocked}))
                    return

    def _answerers_of(self, workers: Sequence[Worker]) -> dict[Worker, list[Collection[Worker]]]:
        """For each worker, for each of its calls: the workers that could answer it."""
        return {
            worker: [servers for call in self._calls[worker].values() for servers in call.version.waits_of(call.key)]
            for worker in workers
        }
