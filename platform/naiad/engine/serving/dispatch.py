"""Dispatcher: between the decisions of a scheduler and their execution.

A scheduler is a state machine without a clock. Its actions are carried out by a `BatchExecutor`; the dispatcher adds
what schedulers other than first come, first served need:

- `_WakeupTimer`: some schedulers delay requests (for a fuller batch, until a timeout) and name a time at which they
  are to be called again. The default scheduler never does, and its requests pay nothing for it: `carry_out` is then
  the executor's own method.
- `_StartHold`: an environment variable of the reference, for tests, delays the first execution.
- `RateLimitGate`: executes batches only when the server's rate limiter grants their resources.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence

from naiad.core import clock
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.interface import Dispatch, RowDispatch
from naiad.engine.serving.execution import BatchExecutor, CarryOut, Fail, OnRejected, WorkerAction, WorkerScheduler
from naiad.engine.serving.rate_limiter import RateLimitGate
from naiad.engine.serving.response_order import OrderedSink
from naiad.guests.worker import Worker

__all__ = ["Dispatcher", "WorkerScheduler"]

_HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOG_VARIABLE = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"
_SECOND_NS = 1_000_000_000


class Dispatcher:
    """Carries out the decisions of one version's scheduler."""

    def __init__(
        self,
        scheduler: WorkerScheduler,
        keys: Iterator[int],
        fail: Fail,
        on_rejected: OnRejected,
        gate: RateLimitGate | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._gate = gate
        self._hold: _StartHold | None = None
        self._timer: _WakeupTimer | None = None
        self._executor = executor = BatchExecutor(scheduler, keys, fail, on_rejected)
        self._perform: CarryOut = executor.carry_out
        self.carry_out: CarryOut = executor.carry_out  # carries actions out, in order
        if gate is None and scheduler.singly is not None:
            return
        self._hold = _StartHold.from_environment(is_sequential=scheduler.sequences is not None)
        self._timer = _WakeupTimer(self._wake)
        self.carry_out = executor.resume = self._carry_out_and_arm
        if gate is not None:
            gate.attach(executor, self.carry_out)
            self._perform = gate.stage_all

    @property
    def waiting_count(self) -> int:
        return self._scheduler.waiting_count + (0 if self._gate is None else self._gate.staged_count)

    def add(self, worker: Worker) -> None:
        """Let a guest take work; raise ConfigError if the rate limiter can never grant what its instance needs."""
        if self._gate is not None:
            self._gate.add(worker)
        if self._hold is not None and self._hold.is_holding:
            self._hold.workers.append(worker)
        else:
            self.carry_out(self._scheduler.add_instance(worker, clock.monotonic_ns()))

    def withdraw(self, pending: OpenRequest) -> bool:
        """Take a waiting request out of the queue; False if it does not wait (any more)."""
        if self._scheduler.withdraw(pending):
            self.carry_out(self._scheduler.wake(clock.monotonic_ns()))  # others may have waited behind it
            return True
        return self._gate is not None and self._gate.withdraw(pending)

    def on_unsent(self, worker: Worker, items: Sequence[OpenRequest], error: Exception) -> None:
        self._executor.on_unsent(worker, items, error)

    def close(self) -> None:
        if self._gate is not None:
            self._gate.close()
        if self._timer is not None:
            self._timer.disarm()
        if self._hold is not None:
            self._hold.workers.clear()

    def _carry_out_and_arm(self, actions: Sequence[WorkerAction]) -> None:
        for action in actions:
            if isinstance(action, Dispatch | RowDispatch):
                for pending in action.items:
                    if isinstance(pending.sink, OrderedSink):
                        pending.sink.begin()
        self._perform(actions)
        if self._hold is not None and self._hold.is_holding:
            for worker in self._hold.release(self._scheduler.waiting_count):
                self.carry_out(self._scheduler.add_instance(worker, clock.monotonic_ns()))
        if self._timer is not None:
            self._timer.arm(self._scheduler.next_wakeup())

    def _wake(self) -> None:
        self.carry_out(self._scheduler.wake(clock.monotonic_ns()))


class _WakeupTimer:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._due_ns = 0

    def arm(self, due_ns: int | None) -> None:
        """Call the scheduler at *due_ns* (monotonic) or, if the timer is set to that already, earlier."""
        if due_ns is None:
            self.disarm()
            return
        if self._handle is not None:
            if self._due_ns <= due_ns:
                return  # waking early does no harm, and costs less than a new timer for each request
            self._handle.cancel()
        self._due_ns = due_ns
        delay = (due_ns - clock.monotonic_ns()) / _SECOND_NS
        # Overdue means the loop's next turn, not now: a scheduler that is always due must not starve the loop.
        self._handle = self._loop.call_later(delay, self._fire) if delay > 0 else self._loop.call_soon(self._fire)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._wake()


class _StartHold:
    """Guests that get no work before a number of requests wait: a test aid of the reference."""

    def __init__(self, count: int) -> None:
        self.workers: list[Worker] = []
        self._count = count

    @classmethod
    def from_environment(cls, *, is_sequential: bool) -> _StartHold:
        """The hold that the server's environment variables ask for; most ask for none."""
        count = int(os.environ.get(_HOLD_VARIABLE) or 0)
        if count and is_sequential:
            count += int(os.environ.get(_BACKLOG_VARIABLE) or 0)
        return cls(count)

    @property
    def is_holding(self) -> bool:
        return self._count > 0

    def release(self, waiting_count: int) -> list[Worker]:
        """The guests that may begin now that so many requests wait."""
        if waiting_count < self._count:
            return []
        self._count = 0
        return self.workers
