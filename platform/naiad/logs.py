"""The server's log: the reference's two forms of a line, its levels, and the lines of guests.

Everything logs through the standard library below the logger "naiad"; this module only says how lines look and where
they go. A disabled level costs one comparison, as `logging` keeps that answer.

    I1120 20:03:25.829575 3355 server.py:441] "msg"          default
    2026-11-20T20:03:25Z I 3355 server.py:441] "msg"         ISO8601

Times are UTC. Messages are quoted and escaped as JSON strings, so that a line of the log is one line whatever a model
prints; TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 turns that off.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = [
    "ActiveLog",
    "GuestName",
    "LineFormatter",
    "LogSettings",
    "configure",
    "escapes_messages",
    "log_block",
    "log_guest_line",
    "log_guest_record",
    "verbose",
]

ROOT = "naiad"
_guest_log = logging.getLogger(f"{ROOT}.guest")
_NEVER = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, how and where.

    Attributes:
        verbose: Level of debug messages: those up to it are logged.
        info: Log what happens.
        warning: Log warnings.
        error: Log errors.
        iso8601: Write time stamps in ISO 8601.
        escape: Quote and escape messages.
        file: Append to this file instead of stderr.
    """

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    iso8601: bool = False
    escape: bool = True
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class GuestName:
    """Whose line it is."""

    model: str
    version: int
    instance: str
    pid: int

    def __str__(self) -> str:
        return f"{self.model} v{self.version} {self.instance} pid {self.pid}"


class ActiveLog:
    """A log that is set up, until it is closed; then logging is as it was before.

    Attributes:
        is_verbose: Whether any debug messages are logged: quicker to ask than a logger, where each request asks.
    """

    def __init__(self, handler: logging.Handler, settings: LogSettings, *, of_libraries: bool = True) -> None:
        self._handler = handler
        # What libraries warn of comes through the root logger; in another's program that is not ours to print.
        self._loggers = [logging.getLogger(ROOT), *([logging.getLogger()] if of_libraries else [])]
        self._logger = logging.getLogger(ROOT)
        self.is_verbose = False
        self._before = (self._logger.level, self._logger.propagate)
        self.change(settings)
        self._logger.propagate = False  # our lines are printed here alone
        for logger in self._loggers:
            logger.addHandler(handler)

    def __enter__(self) -> ActiveLog:  # noqa: PYI034 - typing.Self is 3.11+
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def settings(self) -> LogSettings:
        """How it is set."""
        return self._settings

    def change(self, settings: LogSettings) -> None:
        """Set it otherwise from the next line on; only where it goes stays."""
        self._settings = settings
        self.is_verbose = settings.verbose > 0
        self._handler.setFormatter(LineFormatter(iso8601=settings.iso8601, escape=settings.escape))
        self._handler.filters = [_LevelFilter(settings)]
        self._logger.setLevel(_threshold(settings))

    def close(self) -> None:
        """Write what is left and let go of the file."""
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)
        for logger in self._loggers:
            logger.removeHandler(self._handler)
        self._handler.close()


class LineFormatter(logging.Formatter):
    """One line in the form of the reference."""

    def __init__(self, *, iso8601: bool = False, escape: bool = True) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._escape = escape
        # Most lines share a second with the one before.
        self._second = -1
        self._stamp = ""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without its end."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        block: str | None = getattr(record, "block", None)
        if block is not None:
            return f"{self._prefix(record)}{text}\n{block}"
        return self._prefix(record) + (json.dumps(text, ensure_ascii=False) if self._escape else text)

    def _prefix(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            form = "%Y-%m-%dT%H:%M:%SZ" if self._iso8601 else "%m%d %H:%M:%S"
            self._stamp = time.strftime(form, time.gmtime(second))
            self._second = second
        where = f"{record.process} {record.filename}:{record.lineno}] "
        if self._iso8601:
            return f"{self._stamp} {_letter(record.levelno)} {where}"
        micros = int((record.created - second) * 1_000_000)
        return f"{_letter(record.levelno)}{self._stamp}.{micros:06d} {where}"


class _LevelFilter(logging.Filter):
    """Levels are switched one by one: errors may be off while warnings are on."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        level, settings = record.levelno, self._settings
        if level >= logging.ERROR:
            return settings.error
        if level >= logging.WARNING:
            return settings.warning
        if level >= logging.INFO:
            return settings.info
        return level >= _lowest_verbose(settings.verbose)


def configure(settings: LogSettings, *, of_libraries: bool = True) -> ActiveLog:
    """Send the log, and with *of_libraries* what libraries log, where the settings say, until the result is closed.

    Raises:
        OSError: If the file cannot be opened.
    """
    return ActiveLog(_handler(settings.file), settings, of_libraries=of_libraries)


def escapes_messages(environ: Mapping[str, str]) -> bool:
    """Whether messages are quoted and escaped, which the environment may turn off."""
    return environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"


def verbose(level: int) -> int:
    """The level of `logging` for a message that appears from `--log-verbose=<level>` on; 1 is `logging.DEBUG`."""
    return max(1, logging.DEBUG + 1 - level)


def log_block(logger: logging.Logger, text: str) -> None:
    """Log a table or another text of several lines as it is, below an empty message, as the reference does."""
    logger.info("", extra={"block": text}, stacklevel=2)


def log_guest_line(guest: GuestName, stream: str, line: str) -> None:
    """Log a line a guest wrote to `stdout` or `stderr`."""
    log_guest_record(guest, logging.INFO, stream, guest.pid, line)


def log_guest_record(guest: GuestName, level: int, filename: str, line_number: int, text: str) -> None:
    """Log what a model logged, with the place in its code that logged it."""
    if _guest_log.isEnabledFor(level):
        record = _guest_log.makeRecord(_guest_log.name, level, filename, line_number, "[%s] %s", (guest, text), None)
        _guest_log.handle(record)


def _letter(level: int) -> str:
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"


def _lowest_verbose(level: int) -> int:
    return verbose(level) if level > 0 else _NEVER


def _threshold(settings: LogSettings) -> int:
    """The lowest level of all that are on: what is below costs nothing."""
    levels = (
        (settings.error, logging.ERROR),
        (settings.warning, logging.WARNING),
        (settings.info, logging.INFO),
        (settings.verbose > 0, _lowest_verbose(settings.verbose)),
    )
    return min((level for on, level in levels if on), default=_NEVER)


def _handler(file: Path | None) -> logging.Handler:
    if file is None:
        return _QuietStreamHandler(sys.stderr)
    return logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")


class _QuietStreamHandler(logging.StreamHandler):  # type: ignore[type-arg]  # subscripting it needs Python 3.11
    """Writes to a stream whose reader may go away: that must not end in a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in `logging`
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
