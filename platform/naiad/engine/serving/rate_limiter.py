"""The rate limiter: batches wait between the scheduler's decision and their execution until resources are granted.

One `SharedRateLimiter` serves all models, since they share resources. Each version whose instances name resources has a
`RateLimitGate`, which holds the batches that were decided on and not granted yet ("staged").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from naiad.config.model import model_config_pb2 as pb
from naiad.core import clock
from naiad.core.errors import NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.interface import Dispatch, RowDispatch
from naiad.engine.scheduling.rate_limit import GrantedWork, RateLimiter, ResourceCapacity, ResourceNeed
from naiad.engine.serving.execution import (
    BatchAction,
    BatchExecutor,
    CarryOut,
    OnRejected,
    WorkerAction,
    WorkerScheduler,
)
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferRequest

logger = logging.getLogger("naiad.engine")

StagedBatch: TypeAlias = "tuple[RateLimitGate, BatchAction]"


class SharedRateLimiter:
    """The rate limiter of a server; one for all models."""

    def __init__(self, limits: Iterable[ResourceCapacity] = ()) -> None:
        # Called when resources have passed to others while batches still wait.
        self.on_waiting: Callable[[], None] = lambda: None
        self._limiter: RateLimiter[Worker, StagedBatch] = RateLimiter(limits)
        self._staged: dict[Worker, list[StagedBatch]] = {}

    def register(self, worker: Worker, group: pb.ModelInstanceGroup) -> None:
        """Add a guest of an instance of *group*; raise ConfigError if its resources can never be granted."""
        limiter = group.rate_limiter
        resources = [
            ResourceNeed(resource.name, resource.count, is_global=getattr(resource, "global"))
            for resource in limiter.resources
        ]
        self._limiter.register(worker, resources, priority=limiter.priority, device=worker.spec.device)
        self._staged[worker] = []
        self._log_capacities()

    def unregister(self, worker: Worker) -> list[StagedBatch]:
        """Remove a guest; its staged batches."""
        if worker not in self._staged:
            return []
        staged = self._staged.pop(worker)
        self._execute(self._limiter.unregister(worker))
        self._log_capacities()
        return staged

    def withdraw(self, worker: Worker) -> list[StagedBatch]:
        """Remove the staged batches of a guest, and return them; the batch that it executes is not among them."""
        staged = list(self._staged[worker])
        for batch in reversed(staged):  # the last first: the one in front may be granted as soon as it is the first
            self._staged[worker].remove(batch)
            self._execute(self._limiter.withdraw(worker, batch) or ())
        return staged

    def _log_capacities(self) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", self._limiter.describe_capacities())

    def stage(self, worker: Worker, batch: StagedBatch) -> None:
        """Have *batch* executed as soon as its guest's resources are granted, perhaps before this returns."""
        self._staged[worker].append(batch)
        self._execute(self._limiter.stage(worker, batch))

    def on_batch_done(self, worker: Worker) -> None:
        self._execute(self._limiter.on_finished(worker))

    def _execute(self, grants: Sequence[GrantedWork[Worker, StagedBatch]]) -> None:
        for grant in grants:
            self._staged[grant.instance].remove(grant.work)
            gate, action = grant.work
            gate.on_granted(action)
        if any(self._staged.values()):
            self.on_waiting()

    def waits(self) -> dict[Worker, list[list[Worker]]]:
        """For each guest that executes nothing and whose next batch waits for resources: the guests that hold each."""
        waiting = [worker for worker, staged in self._staged.items() if staged and not worker.batches]
        return {worker: self._limiter.holders_before(worker) for worker in waiting}

    def holders_before(self, pending: OpenRequest) -> Sequence[Collection[Worker]]:
        for worker, staged in self._staged.items():
            if any(pending in action.items for _, action in staged):
                return self._limiter.holders_before(worker)
        return ()


class RateLimitGate:
    """The staged batches of one model version."""

    def __init__(
        self,
        limiter: SharedRateLimiter,
        groups: Mapping[str, pb.ModelInstanceGroup],
        scheduler: WorkerScheduler,
        on_rejected: OnRejected,
    ) -> None:
        self._limiter = limiter
        self.groups = groups  # the instance group of each instance, by the instance's name
        self._scheduler = scheduler
        self._on_rejected = on_rejected
        self._workers: set[Worker] = set()
        self._staged: dict[OpenRequest, asyncio.TimerHandle | None] = {}  # with the timer of its timeout
        # Of the rows of staged batches: one that is withdrawn keeps no request, and is executed with the others.
        self._of_rows: dict[OpenRequest, InferRequest] = {}
        self._executor: BatchExecutor | None = None
        self._resume: CarryOut | None = None

    def attach(self, executor: BatchExecutor, resume: CarryOut) -> None:
        """Set what executes granted batches, and what carries out actions that follow from that."""
        self._executor = executor
        self._resume = resume
        executor.on_given_up = self._limiter.on_batch_done

    @property
    def staged_count(self) -> int:
        return len(self._staged)

    def add(self, worker: Worker) -> None:
        """Add a guest; raises ConfigError if its resources can never be granted."""
        self._limiter.register(worker, self.groups.get(worker.spec.name) or pb.ModelInstanceGroup())
        self._workers.add(worker)

    def remove(self, worker: Worker) -> tuple[OpenRequest, ...]:
        """Remove a guest; the requests of its staged batches."""
        self._workers.discard(worker)
        return self._withdraw_all(self._limiter.unregister(worker))

    def retire(self, worker: Worker) -> tuple[OpenRequest, ...]:
        """Take the staged batches of a guest back, and return their requests; it may finish what it executes."""
        return self._withdraw_all(self._limiter.withdraw(worker)) if worker in self._workers else ()

    def _withdraw_all(self, staged: Sequence[StagedBatch]) -> tuple[OpenRequest, ...]:
        items = [pending for _, action in staged for pending in action.items]
        for pending in items:
            self._of_rows.pop(pending, None)
        return tuple(pending for pending in items if self.withdraw(pending))

    def holders_before(self, pending: OpenRequest) -> Sequence[Collection[Worker]]:
        """For each event that a staged request waits for, the guests that hold what it needs; else nothing."""
        return self._limiter.holders_before(pending) if pending in self._staged else ()

    def on_batch_done(self, worker: Worker) -> None:
        self._limiter.on_batch_done(worker)

    def close(self) -> None:
        for worker in list(self._workers):
            self.remove(worker)

    def stage_all(self, actions: Sequence[WorkerAction]) -> None:
        """Stage batches; carry other actions out."""
        assert self._executor is not None
        for action in actions:
            if isinstance(action, Dispatch | RowDispatch):
                for pending in action.items:
                    self._staged[pending] = self._start_timeout(pending)
                    if isinstance(action, RowDispatch):
                        self._of_rows[pending] = pending.request
                self._limiter.stage(action.instance, (self, action))
            else:
                self._executor.carry_out((action,))

    def on_granted(self, action: BatchAction) -> None:
        """Execute what is left of a staged batch."""
        assert self._executor is not None
        assert self._resume is not None
        worker = action.instance
        items = tuple([pending for pending in action.items if self.withdraw(pending)])
        requests = {pending: self._of_rows.pop(pending, None) for pending in action.items}
        if not items:
            self._limiter.on_batch_done(worker)
            self._resume(self._scheduler.on_finished(worker, clock.monotonic_ns()))
            return
        withdrawn = set(action.items).difference(items)
        for pending in withdrawn:
            if (request := requests[pending]) is not None:
                pending.request = request
        self._executor.carry_out((Dispatch(worker, items) if isinstance(action, Dispatch) else action,))
        if withdrawn and isinstance(action, RowDispatch):  # without its row, the rows behind it would change slots
            worker.cancel([pending.key for pending in withdrawn])
        for pending in withdrawn:
            pending.release()

    def withdraw(self, pending: OpenRequest) -> bool:
        """Take a request out of its staged batch; False if it is in none."""
        if pending not in self._staged:
            return False
        timer = self._staged.pop(pending)
        if timer is not None:
            timer.cancel()
        return True

    def _start_timeout(self, pending: OpenRequest) -> asyncio.TimerHandle | None:
        """A timer that rejects a staged request when its queue timeout expires; None if it has none."""
        deadline = self._scheduler.deadline_of(pending, pending.queued)
        if deadline is None:
            return None
        delay = (deadline - clock.monotonic_ns()) / 1_000_000_000
        return asyncio.get_running_loop().call_later(max(delay, 0), self._on_timeout, pending)

    def _on_timeout(self, pending: OpenRequest) -> None:
        if self.withdraw(pending):
            self._on_rejected(pending, NotReadyError("Request timeout expired"))
