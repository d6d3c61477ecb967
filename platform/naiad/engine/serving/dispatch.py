"""Carrying out what a scheduler decides: work goes to guests, refusals to clients, warnings to the log.

A scheduler that waits for something (a fuller batch, a deadline) says when it wants to be asked again; one timer sees
to that. The default one never waits, so that its requests, of which there may be many thousands a second, pay nothing
for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from naiad.engine.serving.batch_rows import row_requests
from naiad.engine.serving.pending import Pending
from naiad.engine.serving.response_order import OrderedSink
from naiad.errors import NaiadError, OutOfMemoryError
from naiad.scheduling.interface import Action, Dispatch, Rejection, RowDispatch, Scheduler
from naiad.scheduling.sequences.batcher import SequenceScheduler
from naiad.workers.worker import Worker

logger = logging.getLogger("naiad.engine")

_HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOG_VARIABLE = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"
_SECOND_NS = 1_000_000_000

WorkerScheduler: TypeAlias = Scheduler[Worker, Pending]
Fail: TypeAlias = Callable[[Sequence[Pending], NaiadError], None]
"""Answers requests with an error."""
Refused: TypeAlias = Callable[[Pending, NaiadError], None]
"""Hears that the scheduler will not have a request, or no longer."""


class Dispatcher:
    """Carries out the decisions of a scheduler that never waits.

    Attributes:
        scheduler: The scheduler.
    """

    def __init__(self, scheduler: WorkerScheduler, keys: Iterator[int], fail: Fail, refused: Refused) -> None:
        self.scheduler = scheduler
        self._keys = keys
        self._fail = fail
        self._refused = refused

    @property
    def waiting_count(self) -> int:
        """How many requests were not sent to a guest yet."""
        return self.scheduler.waiting_count

    def add(self, worker: Worker) -> None:
        """A guest may take work."""
        self.carry_out(self.scheduler.add_instance(worker, time.monotonic_ns()))

    def withdraw(self, pending: Pending) -> bool:
        """Take a request that waits out of the queue; False where it does not wait (any more)."""
        if not self.scheduler.withdraw(pending):
            return False
        self.carry_out(self.scheduler.wake(time.monotonic_ns()))  # it may have held others up
        return True

    def lost(self, worker: Worker) -> tuple[Pending, ...]:  # noqa: ARG002 - it was sent all at once
        """A guest is gone; return what it was not even sent."""
        return ()

    def done(self, worker: Worker) -> None:
        """A guest has finished a batch."""

    def close(self) -> None:
        """Carry out nothing more."""

    def carry_out(self, actions: Sequence[Action[Worker, Pending]]) -> None:
        """Carry *actions* out, in order."""
        for action in actions:
            if isinstance(action, Dispatch):
                worker, items = action
                now = time.monotonic_ns()
                size = 0
                for pending in items:
                    pending.laid_out = now
                    pending.worker = worker
                    size += pending.batch_size
                try:
                    worker.execute([(pending.key, pending.request) for pending in items], size)
                except OutOfMemoryError as error:
                    self._halve(action, error)
            elif isinstance(action, RowDispatch):
                self._execute_rows(action)
            elif isinstance(action, Rejection):
                self._refused(action.item, action.error)
            else:
                logger.warning("%s", action.message)

    def _execute_rows(self, action: RowDispatch[Worker, Pending]) -> None:
        worker, now = action.instance, time.monotonic_ns()
        for row in action.rows:
            if row.item is not None:
                row.item.laid_out, row.item.worker, row.item.state = now, worker, row.state
        # Nobody knows the keys of rows without a request: their answers go nowhere.
        keys = [next(self._keys) if row.item is None else row.item.key for row in action.rows]
        try:
            worker.execute(list(zip(keys, row_requests(action.rows), strict=True)), len(keys))
        except OutOfMemoryError as error:
            self._halve(action, error)

    def _halve(self, action: Dispatch[Worker, Pending] | RowDispatch[Worker, Pending], error: OutOfMemoryError) -> None:
        """Execute as much of a batch as an empty segment has room for; the rest of it waits, first."""
        worker, items = action.instance, action.items
        if worker.batches or len(items) == 1:
            self._no_room(worker, items, error)
            return
        half = len(items) // 2
        for pending in items[half:]:
            pending.worker = None
        actions = self.scheduler.requeue(items[half:], time.monotonic_ns())
        Dispatcher.carry_out(self, (action.first(half),))
        self.carry_out(actions)

    def _no_room(self, worker: Worker, items: tuple[Pending, ...], error: OutOfMemoryError) -> None:
        """Wait for the batch before, whose end frees room; fail only what does not fit into an empty segment."""
        if not worker.batches:
            self._fail(items, error)
            self.carry_out(self.scheduler.on_finished(worker, time.monotonic_ns()))
            return
        for pending in items:
            pending.worker = None
        self.scheduler.undo_dispatch(worker, items)


class WaitingDispatcher(Dispatcher):
    """Carries out the decisions of a scheduler that may wait, and asks it again when it wants to be."""

    def __init__(self, scheduler: WorkerScheduler, keys: Iterator[int], fail: Fail, refused: Refused) -> None:
        super().__init__(scheduler, keys, fail, refused)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_ns = 0
        # As the reference, for tests: no work begins before so many requests wait.
        self._hold = int(os.environ.get(_HOLD_VARIABLE) or 0)
        if self._hold and isinstance(scheduler, SequenceScheduler):
            self._hold += int(os.environ.get(_BACKLOG_VARIABLE) or 0)
        self._held: list[Worker] = []

    def add(self, worker: Worker) -> None:
        """A guest may take work, unless so many requests shall wait first."""
        if self._hold:
            self._held.append(worker)
        else:
            super().add(worker)

    def close(self) -> None:
        """Carry out nothing more."""
        self._disarm()
        self._held.clear()

    def carry_out(self, actions: Sequence[Action[Worker, Pending]]) -> None:
        """Carry *actions* out, in order, and see to it that the scheduler is asked again in time."""
        for action in actions:
            if isinstance(action, Dispatch | RowDispatch):
                for pending in action.items:
                    if isinstance(pending.sink, OrderedSink):
                        pending.sink.begin()
        self._perform(actions)
        if self._hold and self.scheduler.waiting_count >= self._hold:
            self._hold = 0
            for worker in self._held:
                self.carry_out(self.scheduler.add_instance(worker, time.monotonic_ns()))
        self._arm()

    def _perform(self, actions: Sequence[Action[Worker, Pending]]) -> None:
        super().carry_out(actions)

    def _arm(self) -> None:
        due_ns = self.scheduler.next_wakeup()
        if due_ns is None:
            self._disarm()
            return
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return  # too early does no harm, and costs less than a new timer for each request
            self._timer.cancel()
        self._timer_ns = due_ns
        delay = (due_ns - time.monotonic_ns()) / _SECOND_NS
        # At once means in the loop's next turn: a scheduler that always wants to be asked must not stop the world.
        self._timer = self._loop.call_later(delay, self._wake) if delay > 0 else self._loop.call_soon(self._wake)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self.carry_out(self.scheduler.wake(time.monotonic_ns()))
