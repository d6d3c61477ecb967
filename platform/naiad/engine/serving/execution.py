"""Sends the batches that a scheduler decided on to guests, and handles those that cannot be sent.

Two things keep a batch from its guest: an input segment that is full, and a request that cannot be packed into the
message. The latter is a fault of the server, since requests are checked before; it must not cost more than that
request. In both cases the scheduler has counted the batch as dispatched, so it has to learn that the instance is free.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from naiad.core import clock
from naiad.core.errors import NaiadError, OutOfMemoryError, unexpected_error
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.interface import Action, Dispatch, Rejection, Row, RowDispatch, Scheduler
from naiad.engine.serving.batch_rows import row_requests
from naiad.guests.exchange import KeyedRequest
from naiad.guests.worker import Worker

logger = logging.getLogger("naiad.engine")

WorkerScheduler: TypeAlias = Scheduler[Worker, OpenRequest]
WorkerAction: TypeAlias = Action[Worker, OpenRequest]
BatchAction: TypeAlias = "Dispatch[Worker, OpenRequest] | RowDispatch[Worker, OpenRequest]"
CarryOut: TypeAlias = Callable[[Sequence[WorkerAction]], None]
Fail: TypeAlias = Callable[[Sequence[OpenRequest], NaiadError], None]  # answers requests with an error
OnRejected: TypeAlias = Callable[[OpenRequest, NaiadError], None]  # called with a request that the scheduler rejects


class BatchExecutor:
    """Carries a scheduler's actions out at once."""

    def __init__(self, scheduler: WorkerScheduler, keys: Iterator[int], fail: Fail, on_rejected: OnRejected) -> None:
        # Carries out the actions that follow from a batch that was cut or given up. Set by the dispatcher, which may do
        # more with an action than execute it.
        self.resume: CarryOut = self.carry_out
        # Called with the guest of a batch that was not executed; set by the rate limiter's gate.
        self.on_given_up: Callable[[Worker], None] | None = None
        self._scheduler = scheduler
        self._keys = keys
        self._fail = fail
        self._on_rejected = on_rejected
        self._following: deque[Sequence[WorkerAction]] = deque()
        self._is_resuming = False

    def carry_out(self, actions: Sequence[WorkerAction]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                worker, items = action
                now = clock.monotonic_ns()
                size = 0
                batch: list[KeyedRequest] = []
                try:
                    for pending in items:
                        pending.laid_out = now
                        pending.worker = worker
                        size += pending.batch_size
                        batch.append((pending.key, pending.request, pending.packed))
                    worker.execute(batch, size)
                except OutOfMemoryError as error:
                    self._halve(action, error)
                except Exception as error:
                    logger.exception("cannot send a batch to '%s'", worker.spec.name)
                    self._fail_unsendable(worker, _unsendable(worker, items), items, error)
            elif isinstance(action, RowDispatch):
                self._execute_rows(action)
            elif isinstance(action, Rejection):
                self._on_rejected(action.item, action.error)
            else:
                logger.warning("%s", action.message)

    def _execute_rows(self, action: RowDispatch[Worker, OpenRequest]) -> None:
        worker, now = action.instance, clock.monotonic_ns()
        for row in action.rows:
            if row.item is not None:
                row.item.laid_out, row.item.worker, row.item.state = now, worker, row.state
        # The key of a row without a request is in no table: the guest's response to it is discarded.
        keys = [next(self._keys) if row.item is None else row.item.key for row in action.rows]
        try:
            batch = [(key, request, None) for key, request in zip(keys, row_requests(action.rows), strict=True)]
            worker.execute(batch, len(keys))
        except OutOfMemoryError as error:
            self._halve(action, error)
        except Exception as error:
            logger.exception("cannot send a batch to '%s'", worker.spec.name)
            self._fail_unsendable(worker, _unsendable_rows(worker, action.rows), action.items, error)

    def _halve(self, action: BatchAction, error: OutOfMemoryError) -> None:
        """Execute the half of a batch that does not fit into an empty segment; put the rest back into the queue."""
        worker, items = action.instance, action.items
        if worker.batches or len(items) == 1:
            self._give_up(worker, items, error)
            return
        half = len(items) // 2
        rest = tuple([pending for pending in items[half:] if not pending.is_ended])
        for pending in rest:
            pending.worker = None
        actions = self._scheduler.requeue(rest, clock.monotonic_ns())
        self.carry_out((action.first(half),))
        self.resume(actions)

    def _give_up(self, worker: Worker, items: tuple[OpenRequest, ...], error: OutOfMemoryError) -> None:
        """Requeue a batch for which the segment is too full now; fail a request for which it is too small."""
        if worker.batches:  # the end of the batch before will free room
            for pending in items:
                pending.worker = None
            self._scheduler.undo_dispatch(worker, items)
        else:
            self._fail(items, error)
            self._resume_flat(self._scheduler.on_finished(worker, clock.monotonic_ns()))
        if self.on_given_up is not None:
            self.on_given_up(worker)

    def _fail_unsendable(
        self, worker: Worker, culprits: set[OpenRequest], items: tuple[OpenRequest, ...], error: Exception
    ) -> None:
        """Fail *culprits*, or all of *items* if there are none, and put the other items back into the queue."""
        failed = [pending for pending in items if pending in culprits] or list(items)
        others = tuple([pending for pending in items if pending not in failed and not pending.is_ended])
        for pending in items:
            pending.worker = None
        now = clock.monotonic_ns()
        actions = list(self._scheduler.requeue(others, now)) if others else []
        self._fail(failed, unexpected_error(f"send the request to '{worker.spec.name}'", error))
        self._resume_flat([*actions, *self._scheduler.on_finished(worker, now)])
        if self.on_given_up is not None:
            self.on_given_up(worker)

    def on_unsent(self, worker: Worker, items: Sequence[OpenRequest], error: Exception) -> None:
        """Fail the requests of a batch that `Worker.execute` had accepted, and that was not sent all the same."""
        logger.error("cannot send a batch to '%s'", worker.spec.name, exc_info=error)
        self._fail_unsendable(worker, _unsendable(worker, items), tuple(items), error)

    def _resume_flat(self, actions: Sequence[WorkerAction]) -> None:
        """Carry out what follows from a batch that failed; what follows from that in turn takes no further stack."""
        self._following.append(actions)
        if self._is_resuming:
            return
        self._is_resuming = True
        try:
            while self._following:
                self.resume(self._following.popleft())
        finally:
            self._is_resuming = False


def _unsendable(worker: Worker, items: Sequence[OpenRequest]) -> set[OpenRequest]:
    found = set()
    for pending in items:
        try:
            worker.check_sendable((pending.key, pending.request, pending.packed))
        except Exception:  # noqa: BLE001 - that of the batch is logged
            found.add(pending)
    return found


def _unsendable_rows(worker: Worker, rows: Sequence[Row[OpenRequest]]) -> set[OpenRequest]:
    """Those of *rows* that cannot be packed by themselves, with their controls and states."""
    found = set()
    for row in rows:
        if row.item is None:
            continue
        try:
            worker.check_sendable((row.item.key, row_requests([row])[0], None))
        except Exception:  # noqa: BLE001 - that of the batch is logged
            found.add(row.item)
    return found
