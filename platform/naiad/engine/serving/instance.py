"""One instance of a model version: its guest, and the restart of a guest that exits.

An instance has a guest, or waits to start one, or is abandoned because its guests exited too often (`RestartPolicy`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from typing import Protocol

from naiad.errors import GuestExitedError, NaiadError
from naiad.lifecycle.restart import GiveUp, RestartPolicy, RestartTracker
from naiad.protocol.metadata import InstanceStatus
from naiad.workers.exchange import ModelInterface
from naiad.workers.launch import LaunchSpec
from naiad.workers.worker import GuestServices, Worker, WorkerOwner

logger = logging.getLogger("naiad.engine")


class InstanceOwner(WorkerOwner, Protocol):
    """What an instance needs of its version, beside what the instance's worker needs of it."""

    async def warm_up(self, worker: Worker) -> None:
        """Prepare a new guest for serving; raises NaiadError if that fails."""

    def on_restart(self, instance: Instance) -> None:
        """A new guest has replaced the one that exited."""

    def on_restarts_exhausted(self, instance: Instance) -> None:
        """The instance starts no more guests; `reason` says why."""


class Instance:
    """One instance, with at most one guest at a time.

    Attributes:
        name: Its name, such as `m_0_0`.
        worker: The guest that serves now; None while there is none.
        reason: Why the instance was abandoned; empty while it is not.
        restarts: How often a guest was replaced, by the exit status of the one before.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        owner: InstanceOwner,
        interface: ModelInterface,
        policy: RestartPolicy,
        services: GuestServices,
    ) -> None:
        self.name = spec.name
        self.worker: Worker | None = None
        self.reason = ""
        self.restarts: Counter[str] = Counter()
        self._exit_label = ""
        self._spec = spec
        self._owner = owner
        self._interface = interface
        self._policy = policy
        self._services = services
        self._restarts = RestartTracker(policy)
        self._loop = asyncio.get_running_loop()
        self._restart: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Instance '{self.name}' {self.worker or self.reason or 'restarting'} restarts={self.restarts.total()}>"

    async def start(self) -> None:
        """Start the first guest.

        Raises:
            ModelError: If the model's code failed.
            GuestExitedError: If the process ended or hung.
        """
        self.worker = await self._start_worker()

    def on_exit(self, error: GuestExitedError) -> None:
        """The guest has exited: schedule the next one, or abandon the instance."""
        self.worker = None
        self._exit_label = exit_label(error)
        logger.error("%s", error.message)
        self._schedule_restart(error)

    def status(self, model: str, version: int, namespace: str = "") -> InstanceStatus:
        """Its status for metrics."""
        worker = self.worker
        return InstanceStatus(
            model=model,
            namespace=namespace,
            version=str(version),
            name=self.name,
            pid=0 if worker is None else worker.pid,
            restarts=dict(self.restarts),
            input_byte_size=0 if worker is None else worker.memory.input_byte_size,
            borrowed_outputs=0 if worker is None else worker.memory.borrowed_count,
        )

    async def stop(self, timeout: float) -> None:
        """Finalize the model and end the guest, within *timeout* seconds."""
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        if self.worker is not None:
            worker, self.worker = self.worker, None
            await worker.stop(timeout)

    async def _start_worker(self) -> Worker:
        worker = Worker(self._spec, self._owner, self._interface, self._services)
        await worker.start()
        try:
            await self._owner.warm_up(worker)
        except BaseException:
            await worker.kill()
            raise
        logger.info("'%s' is ready: pid %d, Python %s (%s)", self.name, worker.pid, worker.python, self._spec.python)
        return worker

    def _schedule_restart(self, error: NaiadError) -> None:
        decision = self._restarts.on_exit(self._loop.time())
        if isinstance(decision, GiveUp):
            self.reason = (
                f"{error.message.splitlines()[0]} It died {decision.exits} times within {self._policy.window:g} s, "
                f"more than --stub-restart-limit={self._policy.limit} allows; load the model again to retry"
            )
            logger.error("'%s' is abandoned: %s", self.name, self.reason)
            self._owner.on_restarts_exhausted(self)
            return
        logger.warning("'%s' is restarted in %g s", self.name, decision.delay)
        self._restart = self._loop.create_task(self._restart_after(decision.delay))

    async def _restart_after(self, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            self.worker = await self._start_worker()
        except NaiadError as error:
            logger.error("'%s' did not start again: %s", self.name, error.message)  # noqa: TRY400 - a guest's error
            self._schedule_restart(error)
            return
        self.restarts[self._exit_label] += 1
        self._restart = None
        self._owner.on_restart(self)


def exit_label(error: GuestExitedError) -> str:
    """A guest's exit status as a label of metrics, such as `SIGSEGV` or `exit 1`."""
    status = error.exit_status
    if status is None:
        return "unknown"
    if status >= 0:
        return f"exit {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
