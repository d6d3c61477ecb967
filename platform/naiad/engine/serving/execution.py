"""Sends the batches that a scheduler decided on to guests, and handles input segments that are full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from naiad.engine.serving.batch_rows import row_requests
from naiad.engine.serving.pending import PendingRequest
from naiad.errors import NaiadError, OutOfMemoryError
from naiad.scheduling.interface import Action, Dispatch, Rejection, RowDispatch, Scheduler
from naiad.workers.exchange import KeyedRequest
from naiad.workers.worker import Worker

__all__ = ["BatchAction", "BatchExecutor", "CarryOut", "Fail", "OnRejected", "WorkerAction", "WorkerScheduler"]

logger = logging.getLogger("naiad.engine")

WorkerScheduler: TypeAlias = Scheduler[Worker, PendingRequest]
WorkerAction: TypeAlias = Action[Worker, PendingRequest]
BatchAction: TypeAlias = "Dispatch[Worker, PendingRequest] | RowDispatch[Worker, PendingRequest]"
CarryOut: TypeAlias = Callable[[Sequence[WorkerAction]], None]
Fail: TypeAlias = Callable[[Sequence[PendingRequest], NaiadError], None]
"""Answers requests with an error."""
OnRejected: TypeAlias = Callable[[PendingRequest, NaiadError], None]
"""Called with a request that the scheduler rejects."""


class BatchExecutor:
    """Carries a scheduler's actions out at once.

    Attributes:
        resume: Carries out the actions that follow from a batch that was cut or given up. Set by the dispatcher, which
            may do more with an action than execute it.
        on_given_up: Called with the guest of a batch that was not executed; set by the rate limiter's gate.
    """

    def __init__(self, scheduler: WorkerScheduler, keys: Iterator[int], fail: Fail, on_rejected: OnRejected) -> None:
        self.resume: CarryOut = self.carry_out
        self.on_given_up: Callable[[Worker], None] | None = None
        self._scheduler = scheduler
        self._keys = keys
        self._fail = fail
        self._on_rejected = on_rejected

    def carry_out(self, actions: Sequence[WorkerAction]) -> None:
        """Carry *actions* out, in order."""
        for action in actions:
            if isinstance(action, Dispatch):
                worker, items = action
                now = time.monotonic_ns()
                size = 0
                batch: list[KeyedRequest] = []
                for pending in items:
                    pending.laid_out = now
                    pending.worker = worker
                    size += pending.batch_size
                    batch.append((pending.key, pending.request, pending.packed))
                try:
                    worker.execute(batch, size)
                except OutOfMemoryError as error:
                    self._halve(action, error)
            elif isinstance(action, RowDispatch):
                self._execute_rows(action)
            elif isinstance(action, Rejection):
                self._on_rejected(action.item, action.error)
            else:
                logger.warning("%s", action.message)

    def _execute_rows(self, action: RowDispatch[Worker, PendingRequest]) -> None:
        worker, now = action.instance, time.monotonic_ns()
        for row in action.rows:
            if row.item is not None:
                row.item.laid_out, row.item.worker, row.item.state = now, worker, row.state
        # The key of a row without a request is in no table: the guest's response to it is discarded.
        keys = [next(self._keys) if row.item is None else row.item.key for row in action.rows]
        batch = [(key, request, None) for key, request in zip(keys, row_requests(action.rows), strict=True)]
        try:
            worker.execute(batch, len(keys))
        except OutOfMemoryError as error:
            self._halve(action, error)

    def _halve(self, action: BatchAction, error: OutOfMemoryError) -> None:
        """Execute the half of a batch that does not fit into an empty segment; put the rest back into the queue."""
        worker, items = action.instance, action.items
        if worker.batches or len(items) == 1:
            self._give_up(worker, items, error)
            return
        half = len(items) // 2
        for pending in items[half:]:
            pending.worker = None
        actions = self._scheduler.requeue(items[half:], time.monotonic_ns())
        self.carry_out((action.first(half),))
        self.resume(actions)

    def _give_up(self, worker: Worker, items: tuple[PendingRequest, ...], error: OutOfMemoryError) -> None:
        """Requeue a batch for which the segment is too full now; fail a request for which it is too small."""
        if worker.batches:  # the end of the batch before will free room
            for pending in items:
                pending.worker = None
            self._scheduler.undo_dispatch(worker, items)
        else:
            self._fail(items, error)
            self.resume(self._scheduler.on_finished(worker, time.monotonic_ns()))
        if self.on_given_up is not None:
            self.on_given_up(worker)
