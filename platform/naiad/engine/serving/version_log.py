"""Logs what the guests of one version log and print."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from naiad_stub.wire import LOG_ONCE

from naiad.core.logs import GUEST_LEVELS, GuestName, log_guest_line, log_guest_record
from naiad.guests.worker import Worker

# Messages that are logged once, for a version: a guest is foreign code, and may send any number of them.
_KEPT_ONCE = 256


# Logs what a model has logged: the guest, its level on the wire, file, line and message.
Record: TypeAlias = Callable[[GuestName, int, str, int, str], None]

# Logs a line that a guest wrote: the guest, "stdout" or "stderr", and the line.
WriteLine: TypeAlias = Callable[[GuestName, str, str], None]


class VersionLog:
    """The log of one version's guests."""

    def __init__(self, model: str, version: int) -> None:
        # What to do about an error that a guest logged; empty for nothing, None if there is no advice.
        self.advise: Callable[[str], str] | None = None
        self._model = model
        self._version = version
        self._logged_once: set[str] = set()
        self._record: Record = self.record
        self._write_line: WriteLine = log_guest_line

    def pass_on(self, record: Record, write_line: WriteLine) -> None:
        """Have another process log, which has the version's instances in all processes before it."""
        self._record, self._write_line = record, write_line

    def on_log_record(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """Log what the model logged, under the model's own file and line."""
        self._record(self._name_of(worker), level, file, line, message)

    def on_output_line(self, worker: Worker, stream: str, line: str) -> None:
        self._write_line(self._name_of(worker), stream, line)

    def record(self, guest: GuestName, level: int, file: str, line: int, message: str) -> None:
        """See `on_log_record`; the guest may be one of another process."""
        if self.advise is not None and "ModuleNotFoundError" in message and (advice := self.advise(message)):
            first, separator, rest = message.partition("\n")
            message = f"{first}; {advice}{separator}{rest}"
        if level & LOG_ONCE:
            # What follows a colon may differ from guest to guest, as the shape of an output does.
            subject = message.partition(": ")[0]
            if subject in self._logged_once or len(self._logged_once) >= _KEPT_ONCE:
                return
            self._logged_once.add(subject)
            level -= LOG_ONCE
        log_guest_record(guest, GUEST_LEVELS.get(level, logging.INFO), file, line, message)

    def _name_of(self, worker: Worker) -> GuestName:
        return GuestName(self._model, self._version, worker.spec.name, worker.pid)
