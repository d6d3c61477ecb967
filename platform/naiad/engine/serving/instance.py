"""One instance of a model version: its guest, and the restart of a guest that exits.

An instance has a guest, or waits to start one, or is given up for a while because its guests exited too often. What
follows an exit is decided in `engine.lifecycle.restart`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from typing import Protocol

from naiad.core import clock
from naiad.core.errors import GuestExitedError, NaiadError
from naiad.engine.lifecycle.restart import FIRST_DELAY, GiveUp, Restart, RestartPolicy, RestartTracker
from naiad.guests.exchange import ModelInterface
from naiad.guests.launch import LaunchSpec
from naiad.guests.worker import GuestServices, Worker, WorkerDelegate
from naiad.protocol.metadata import InstanceStatus

logger = logging.getLogger("naiad.engine")


class InstanceDelegate(WorkerDelegate, Protocol):
    """What an instance needs of its version, beside what the instance's worker needs of it."""

    @property
    def recovering(self) -> asyncio.Lock:
        """Held by the instance that tries a guest after it was given up."""

    async def warm_up(self, worker: Worker) -> None:
        """Prepare a new guest for serving; raises NaiadError if that fails."""

    def on_restart(self, instance: Instance) -> None:
        """A new guest has replaced the one that exited."""

    def on_given_up(self, instance: Instance, pause: float | None) -> None:
        """The instance starts no guest for *pause* seconds (None: ever); `reason` says why."""

    def recovery_delay(self) -> float:
        """How many seconds an instance that was given up still has to wait before it tries a guest."""


class Instance:
    """One instance, with at most one guest at a time."""

    def __init__(
        self,
        spec: LaunchSpec,
        delegate: InstanceDelegate,
        interface: ModelInterface,
        policy: RestartPolicy,
        services: GuestServices,
    ) -> None:
        self.name = spec.name  # such as `m_0_0`
        self.worker: Worker | None = None  # the guest that serves now; None while no guest does
        self.reason = ""  # why the instance was given up; empty while it is not
        self.restarts: Counter[str] = Counter()  # how often a guest was replaced, by the exit status of the one before
        self._exit_label = ""
        self.spec = spec
        self._delegate = delegate
        self._interface = interface
        self._policy = policy
        self._services = services
        self._restarts = RestartTracker(policy)
        self._loop = asyncio.get_running_loop()
        self._restart: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Instance '{self.name}' {self.worker or self.reason or 'restarting'} restarts={self.restarts.total()}>"

    async def start(self) -> None:
        self.worker = await self._start_worker()

    def on_exit(self, error: GuestExitedError, now: float, *, is_forgotten: bool) -> None:
        """The guest has exited *now* (`clock.monotonic`): schedule the next one, or give the instance up.

        With *is_forgotten*, a request that is refused from now on is to blame, and the instance is never given up.
        """
        self.worker = None
        self._exit_label = exit_label(error)
        logger.error("%s", error.message)
        if is_forgotten:
            logger.error("'%s': the request that ended this process and others before is refused", self.name)
            self._schedule_start(FIRST_DELAY)
        else:
            self._schedule_restart(error, now)

    @property
    def is_serving(self) -> bool:
        return self.worker is not None and not self.worker.is_hung

    @property
    def state(self) -> str:
        """Its state in a word, for the page: "ready", "hung", "restarting" or "given up"."""
        if self.worker is not None:
            return "hung" if self.worker.is_hung else "ready"
        return "given up" if self.reason else "restarting"

    def forget_exits(self, times: frozenset[float]) -> None:
        """Do not count exits at these times: a request that is refused from now on caused them."""
        if times:
            self._restarts.forget_exits(times)

    def status(self, model: str, version: int, namespace: str = "") -> InstanceStatus:
        worker = self.worker
        return InstanceStatus(
            model=model,
            namespace=namespace,
            version=str(version),
            name=self.name,
            pid=0 if worker is None else worker.pid,
            state=self.state,
            restarts=dict(self.restarts),
            input_byte_size=0 if worker is None else worker.memory.input_byte_size,
            borrowed_outputs=0 if worker is None else worker.memory.borrowed_count,
            stalled_seconds=0.0 if worker is None else worker.stalled_seconds,
        )

    async def stop(self, timeout: float) -> None:
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        if self.worker is not None:
            worker, self.worker = self.worker, None
            await worker.stop(timeout)

    async def _start_worker(self) -> Worker:
        worker = Worker(self.spec, self._delegate, self._interface, self._services)
        await worker.start()
        try:
            await self._delegate.warm_up(worker)
        except BaseException:
            await worker.kill()
            raise
        worker.watch()
        logger.info("'%s' is ready: pid %d, Python %s (%s)", self.name, worker.pid, worker.python, self.spec.python)
        return worker

    def _schedule_restart(self, error: NaiadError, now: float) -> None:
        decision = self._restarts.on_exit(now)
        if isinstance(decision, Restart):
            self._schedule_start(decision.delay)
            return
        self.reason = self._given_up_text(error, decision)
        logger.error("'%s' is given up: %s", self.name, self.reason)
        self._delegate.on_given_up(self, decision.pause)
        if decision.pause is not None:
            self._restart = self._loop.create_task(self._recover_after(decision.pause))

    def _given_up_text(self, error: NaiadError, decision: GiveUp) -> str:
        problem = error.problem if isinstance(error, GuestExitedError) else error.message.splitlines()[0]
        if decision.is_recovery:
            count = "It was the process with which recovery was tried"
        else:
            policy = self._policy
            times = "once" if decision.exits == 1 else f"{decision.exits} times"
            count = f"It died {times} within {policy.window:g} s, more than --stub-restart-limit={policy.limit} allows"
        following = "" if decision.pause is None else f"it is tried again in {decision.pause:g} s; "
        return f"{problem} {count}; {following}load the model again to retry{' at once' if following else ''}"

    def _schedule_start(self, delay: float) -> None:
        logger.warning("'%s' is restarted in %g s", self.name, delay)
        self._restart = self._loop.create_task(self._restart_after(delay))

    async def _restart_after(self, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._start_again()

    async def _recover_after(self, delay: float) -> None:
        """Try a guest after *delay* seconds, when it is this instance's turn."""
        while delay > 0:
            await asyncio.sleep(delay)
            async with self._delegate.recovering:
                delay = self._delegate.recovery_delay()
                if delay <= 0:
                    logger.warning("'%s' was given up; one process is tried now", self.name)
                    await self._start_again()

    async def _start_again(self) -> None:
        try:
            self.worker = await self._start_worker()
        except NaiadError as error:
            logger.error("'%s' did not start again: %s", self.name, error.message)  # noqa: TRY400 - a guest's error
            self._schedule_restart(error, clock.monotonic())
            return
        self.restarts[self._exit_label] += 1
        self._restart = None
        if self.reason:
            self._restarts.on_recovered(clock.monotonic())
            self.reason = ""
        self._delegate.on_restart(self)


def exit_label(error: GuestExitedError) -> str:
    """Why a guest exited as a label of metrics, such as `SIGSEGV`, `exit 1` or `hang`."""
    if error.label:
        return error.label
    status = error.exit_status
    if status is None:
        return "unknown"
    if status >= 0:
        return f"exit {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
