"""Logs what the guests of one version log and print."""

from __future__ import annotations

import logging
from collections.abc import Callable

from naiad_stub.wire import LOG_ONCE

from naiad.core.logs import GUEST_LEVELS, GuestName, log_guest_line, log_guest_record
from naiad.guests.worker import Worker

__all__ = ["VersionLog"]

_KEPT_ONCE = 256
"""Messages that are logged once, for a version: a guest is foreign code, and may send any number of them."""


class VersionLog:
    """The log of one version's guests.

    Attributes:
        advise: Returns what to do about an error that a guest logged; empty for nothing. None if there is no advice.
    """

    def __init__(self, model: str, version: int) -> None:
        self.advise: Callable[[str], str] | None = None
        self._model = model
        self._version = version
        self._logged_once: set[str] = set()

    def on_log_record(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """Log what the model logged, under the model's own file and line."""
        self.record(self.name_of(worker), level, file, line, message)

    def on_output_line(self, worker: Worker, stream: str, line: str) -> None:
        """Log a line the guest wrote to stdout or stderr."""
        log_guest_line(self.name_of(worker), stream, line)

    def record(self, guest: GuestName, level: int, file: str, line: int, message: str) -> None:
        """See `on_log_record`; the guest may be one of another process."""
        if self.advise is not None and "ModuleNotFoundError" in message and (advice := self.advise(message)):
            first, separator, rest = message.partition("\n")
            message = f"{first}; {advice}{separator}{rest}"
        if level & LOG_ONCE:
            if message in self._logged_once or len(self._logged_once) >= _KEPT_ONCE:
                return
            self._logged_once.add(message)
            level -= LOG_ONCE
        log_guest_record(guest, GUEST_LEVELS.get(level, logging.INFO), file, line, message)

    def name_of(self, worker: Worker) -> GuestName:
        """How the log names a guest."""
        return GuestName(self._model, self._version, worker.spec.name, worker.pid)
