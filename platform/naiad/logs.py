"""The server's log: the reference's two line formats, its levels, and the output of guests.

All modules log with the standard library, to loggers below "naiad". This module sets the format and the destination. A
message of a disabled level costs one comparison, because `logging` caches whether a level is enabled.

    I1120 20:03:25.829575 3355 server.py:441] "msg"          default
    2026-11-20T20:03:25Z I 3355 server.py:441] "msg"         ISO8601

Times are UTC. Messages are quoted and escaped as JSON strings, so that a message is always one line;
TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 disables this.
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
    """Levels, format and destination of the log.

    Attributes:
        verbose: Verbosity: debug messages up to this level are logged.
        info: Log information.
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
    """The guest that wrote a line."""

    model: str
    version: int
    instance: str
    pid: int

    def __str__(self) -> str:
        return f"{self.model} v{self.version} {self.instance} pid {self.pid}"


class ActiveLog:
    """A configured log; closing it restores the previous configuration of `logging`.

    Attributes:
        is_verbose: Whether debug messages are logged; faster than `Logger.isEnabledFor`, for use in every request.
    """

    def __init__(self, handler: logging.Handler, settings: LogSettings, *, of_libraries: bool = True) -> None:
        self._handler = handler
        # Warnings of libraries reach the root logger. Inside another program they are left to that program.
        self._loggers = [logging.getLogger(ROOT), *([logging.getLogger()] if of_libraries else [])]
        self._logger = logging.getLogger(ROOT)
        self.is_verbose = False
        self._before = (self._logger.level, self._logger.propagate)
        self.change(settings)
        self._logger.propagate = False  # otherwise handlers of the root logger would print our lines again
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
        """The current settings."""
        return self._settings

    def change(self, settings: LogSettings) -> None:
        """Use other settings from the next line on; the destination is not changed."""
        self._settings = settings
        self.is_verbose = settings.verbose > 0
        self._handler.setFormatter(LineFormatter(iso8601=settings.iso8601, escape=settings.escape))
        self._handler.filters = [_LevelFilter(settings)]
        self._logger.setLevel(_threshold(settings))

    def close(self) -> None:
        """Flush and close the file, and restore `logging`."""
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)
        for logger in self._loggers:
            logger.removeHandler(self._handler)
        self._handler.close()


class LineFormatter(logging.Formatter):
    """Formats a record as one line of the reference's log."""

    def __init__(self, *, iso8601: bool = False, escape: bool = True) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._escape = escape
        # The formatted second is cached: most lines have that of their predecessor.
        self._second = -1
        self._stamp = ""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without a newline."""
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
    """Enables each level separately: errors may be off while warnings are on, which `logging` itself cannot."""

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
    """Configure the log, and with *of_libraries* that of libraries, until the result is closed.

    Raises:
        OSError: If the file cannot be opened.
    """
    return ActiveLog(_handler(settings.file), settings, of_libraries=of_libraries)


def escapes_messages(environ: Mapping[str, str]) -> bool:
    """Whether messages are quoted and escaped, which an environment variable disables."""
    return environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"


def verbose(level: int) -> int:
    """The `logging` level of a message that `--log-verbose=<level>` and above show; 1 is `logging.DEBUG`."""
    return max(1, logging.DEBUG + 1 - level)


def log_block(logger: logging.Logger, text: str) -> None:
    """Log a table or another text of several lines without escaping, below an empty message, as the reference does."""
    logger.info("", extra={"block": text}, stacklevel=2)


def log_guest_line(guest: GuestName, stream: str, line: str) -> None:
    """Log a line that a guest wrote to `stdout` or `stderr`."""
    log_guest_record(guest, logging.INFO, stream, guest.pid, line)


def log_guest_record(guest: GuestName, level: int, filename: str, line_number: int, text: str) -> None:
    """Log a message of a model, with file and line of its code."""
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
    """The lowest enabled level; messages below it cost nothing."""
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
    """Ignores a closed stream: otherwise `logging` would print a traceback for every line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in `logging`
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
