"""The rate limiter at work: between the decision of a scheduler and its execution."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from naiad.config.model import model_config_pb2 as pb
from naiad.engine.serving.dispatch import Fail, Refused, WaitingDispatcher, WorkerScheduler
from naiad.engine.serving.pending import Pending
from naiad.errors import NotReadyError, OutOfMemoryError
from naiad.scheduling.dynamic.batcher import DynamicScheduler
from naiad.scheduling.interface import Action, Dispatch, RowDispatch
from naiad.scheduling.rate_limit import GrantedWork, RateLimiter, ResourceCapacity, ResourceNeed
from naiad.workers.worker import Worker

Work: TypeAlias = "tuple[LimitedDispatcher, Dispatch[Worker, Pending] | RowDispatch[Worker, Pending]]"

_CPU = 0
"""The device of all instances: none of ours is tied to one."""


class SharedLimiter:
    """The rate limiter of a server; one for all models."""

    def __init__(self, limits: Iterable[ResourceCapacity] = ()) -> None:
        self._limiter: RateLimiter[Worker, Work] = RateLimiter(limits)
        self._staged: dict[Worker, list[Work]] = {}

    def register(self, worker: Worker, group: pb.ModelInstanceGroup) -> None:
        """Take up a guest of an instance of *group*.

        Raises:
            ConfigError: If what it needs could never be there.
        """
        limiter = group.rate_limiter
        resources = [
            ResourceNeed(resource.name, resource.count, is_global=getattr(resource, "global"))
            for resource in limiter.resources
        ]
        self._limiter.register(worker, resources, priority=limiter.priority, device=_CPU)
        self._staged[worker] = []

    def unregister(self, worker: Worker) -> list[Work]:
        """Forget a guest; return what it was to do and has not begun."""
        staged = self._staged.pop(worker, [])
        self._carry_out(self._limiter.unregister(worker))
        return staged

    def stage(self, worker: Worker, work: Work) -> None:
        """Have *worker* do *work* as soon as what it needs is there."""
        self._staged[worker].append(work)
        self._carry_out(self._limiter.stage(worker, work))

    def finished(self, worker: Worker) -> None:
        """A guest has done its oldest work."""
        self._carry_out(self._limiter.on_finished(worker))

    def _carry_out(self, grants: Sequence[GrantedWork[Worker, Work]]) -> None:
        for grant in grants:
            self._staged[grant.instance].remove(grant.work)
            dispatcher, action = grant.work
            dispatcher.begin(action)


class LimitedDispatcher(WaitingDispatcher):
    """Carries decisions out when the rate limiter lets it."""

    def __init__(
        self,
        scheduler: WorkerScheduler,
        keys: Iterator[int],
        fail: Fail,
        refused: Refused,
        limiter: SharedLimiter,
        groups: Mapping[str, pb.ModelInstanceGroup],
    ) -> None:
        super().__init__(scheduler, keys, fail, refused)
        self._limiter = limiter
        self._groups = groups
        self._workers: set[Worker] = set()
        self._staged: dict[Pending, asyncio.TimerHandle | None] = {}  # with what ends their patience

    @property
    def waiting_count(self) -> int:
        """How many requests were not sent to a guest yet."""
        return super().waiting_count + len(self._staged)

    def add(self, worker: Worker) -> None:
        """A guest may take work; raises ConfigError if what it needs could never be there."""
        self._limiter.register(worker, self._groups.get(worker.spec.name) or pb.ModelInstanceGroup())
        self._workers.add(worker)
        super().add(worker)

    def lost(self, worker: Worker) -> tuple[Pending, ...]:
        """A guest is gone; return what it had not begun."""
        self._workers.discard(worker)
        items = [pending for _, action in self._limiter.unregister(worker) for pending in action.items]
        return tuple(pending for pending in items if self._unstage(pending))

    def withdraw(self, pending: Pending) -> bool:
        """Take a request that waits out of the queue, or from among what is staged."""
        return super().withdraw(pending) or self._unstage(pending)

    def done(self, worker: Worker) -> None:
        """A guest has finished a batch: others may use what it used."""
        self._limiter.finished(worker)

    def close(self) -> None:
        """Carry out nothing more."""
        for worker in list(self._workers):
            self.lost(worker)
        super().close()

    def _perform(self, actions: Sequence[Action[Worker, Pending]]) -> None:
        for action in actions:
            if isinstance(action, Dispatch | RowDispatch):
                for pending in action.items:
                    self._staged[pending] = self._watch(pending)
                self._limiter.stage(action.instance, (self, action))
            else:
                super()._perform((action,))

    def begin(self, action: Dispatch[Worker, Pending] | RowDispatch[Worker, Pending]) -> None:
        """The limiter lets *action* be executed: what is left of it."""
        worker = action.instance
        items = tuple([pending for pending in action.items if self._unstage(pending)])
        if not items:
            self._limiter.finished(worker)
            self.carry_out(self.scheduler.on_finished(worker, time.monotonic_ns()))
            return
        gone = set(action.items).difference(items)
        super()._perform((Dispatch(worker, items) if isinstance(action, Dispatch) else action,))
        if gone and isinstance(action, RowDispatch):  # other rows would move if these were left out
            worker.cancel([pending.key for pending in gone])

    def _watch(self, pending: Pending) -> asyncio.TimerHandle | None:
        """See to it that a request waits no longer than it would in the queue."""
        if not isinstance(self.scheduler, DynamicScheduler):
            return None
        deadline = self.scheduler.deadline_of(pending, pending.queued)
        if deadline is None:
            return None
        delay = (deadline - time.monotonic_ns()) / 1_000_000_000
        return asyncio.get_running_loop().call_later(max(delay, 0), self._expired, pending)

    def _expired(self, pending: Pending) -> None:
        if self._unstage(pending):
            self._refused(pending, NotReadyError("Request timeout expired"))

    def _unstage(self, pending: Pending) -> bool:
        """Take a request from among those that are staged; False where it is none of them."""
        if pending not in self._staged:
            return False
        timer = self._staged.pop(pending)
        if timer is not None:
            timer.cancel()
        return True

    def _no_room(self, worker: Worker, items: tuple[Pending, ...], error: OutOfMemoryError) -> None:
        super()._no_room(worker, items, error)
        self._limiter.finished(worker)
