"""Running a model's `auto_complete_config` in a throw-away guest."""

from __future__ import annotations

import logging

from naiad.errors import GuestDiedError
from naiad.workers.exchange import Answer, Interface
from naiad.workers.launch import LaunchSpec
from naiad.workers.worker import Batch, Worker

logger = logging.getLogger("naiad.guest")


async def complete_in_guest(spec: LaunchSpec) -> str:
    """Start the guest that *spec* describes (its LOAD asks for completion) and return the configuration as JSON.

    A process of its own, so that nothing a model leaves behind while completing reaches its instances.

    Raises:
        ModelError: If the model's code failed.
        GuestDiedError: If the process ended or hung.
    """
    worker = Worker(spec, _Listener(), Interface(spec.name, 0, (), ()))
    try:
        return await worker.start()
    finally:
        await worker.kill()


class _Listener:
    """Logs what the guest prints; nothing else can happen before a model serves."""

    def answered(self, worker: Worker, answer: Answer, started: int, ended: int) -> None:
        """Cannot happen: nothing was asked."""

    def batch_done(self, worker: Worker, batch: Batch, started: int, ended: int) -> None:
        """Cannot happen: nothing was asked."""

    def died(self, worker: Worker, error: GuestDiedError) -> None:
        """Its end is what `start` reports, or what it is for."""

    def said(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """Log what the model logged."""
        logger.info("[%s pid %d] %s:%d %s (level %d)", worker.spec.name, worker.pid, file, line, message, level)

    def printed(self, worker: Worker, stream: str, line: str) -> None:
        """Log a line the guest wrote."""
        logger.info("[%s pid %d %s] %s", worker.spec.name, worker.pid, stream, line)
