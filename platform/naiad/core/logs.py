"""The server's log: the reference's two line formats, its levels, and the output of guests.

All modules log with the standard library, to loggers below "naiad". This module sets the format and the destination. A
message of a disabled level costs one comparison, because `logging` caches whether a level is enabled.

    I1120 20:03:25.829575 3355 server.py:441] "msg"          default
    2026-11-20T20:03:25Z I 3355 server.py:441] "msg"         ISO8601

Times are UTC. Messages are quoted and escaped as JSON strings, so that a message is always one line;
TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 disables this.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from naiad.core.log_writer import FileDestination, LogWriter, StreamDestination

if TYPE_CHECKING:  # commands that print help or a version log nothing, and import no event loop
    import asyncio

ROOT = "naiad"
_logger = logging.getLogger(ROOT)
_guest_log = logging.getLogger(f"{ROOT}.guest")
_KEPT_LINES = 200
_KEPT_SERVER_LINES = 2000
_KEPT_CHARACTERS = 2000
_KEPT_BYTES = 16 << 20
_LINE_OVERHEAD = 200  # about what a line takes beside its text
_PASS_ON_SECONDS = 0.05  # between two deliveries of lines to another process, so that messages are few
_NEVER = logging.CRITICAL + 1

GUEST_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.DEBUG}
"""Levels by their numbers in the messages of guests, which are those of the reference's C API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Levels, format and destination of the log: a file to append to, else stderr."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    iso8601: bool = False
    escape: bool = True
    file: Path | None = None  # append to this file instead of stderr


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
    """A configured log; closing it restores the previous configuration of `logging`."""

    def __init__(self, handler: _LineHandler, settings: LogSettings, *, of_libraries: bool = True) -> None:
        self._handler = handler
        # Warnings of libraries reach the root logger. Inside another program they are left to that program.
        self._loggers = [_logger, *([logging.getLogger()] if of_libraries else [])]
        self.is_verbose = False  # faster than `Logger.isEnabledFor`, for use in every request
        self._kept: list[logging.Handler] = []
        _open_logs.add(self)
        self.apply(settings)
        for logger in self._loggers:
            logger.addHandler(handler)

    def __enter__(self) -> ActiveLog:  # noqa: PYI034 - typing.Self is 3.11+
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def change(self, settings: LogSettings) -> None:
        """See `apply`: the log as clients change it."""
        self.apply(settings)

    def apply(self, settings: LogSettings) -> None:
        self.settings = settings
        self.is_verbose = settings.verbose > 0
        self._handler.setFormatter(LineFormatter(iso8601=settings.iso8601, escape=settings.escape))
        self._handler.filters = [_LevelFilter(settings), partial(_open_logs.is_first_to_write, self)]
        _open_logs.set_level()

    def passes(self, level: int) -> bool:
        return _LevelFilter(self.settings).passes(level)

    def keep_recent(self) -> RecentLines:
        """Keep the last lines in memory from now on, until the log is closed."""
        recent = RecentLines()
        _logger.addHandler(recent)
        self._kept.append(recent)
        return recent

    def pass_on(self, deliver: Callable[[Sequence[ServerLine]], None], loop: asyncio.AbstractEventLoop) -> None:
        """Deliver the lines of the server from now on, until the log is closed, to the process that keeps them.

        *deliver* gets those of the last moments, oldest first: at most 2000, since `RecentLines` would drop older ones.
        """
        passing = _LinesInPassing(deliver, loop)
        _logger.addHandler(passing)
        self._kept.append(passing)

    def reopen(self) -> None:
        """Open the log file again by its name, after it was renamed; stderr stays as it is. Does not block."""
        self._handler.writer.reopen()

    def flush(self) -> None:
        self._handler.writer.flush()

    def close(self) -> None:
        """Write what is queued, for a bounded time, close the file, and restore `logging`."""
        _open_logs.remove(self)
        for kept in self._kept:
            _logger.removeHandler(kept)
            kept.close()
        for logger in self._loggers:
            logger.removeHandler(self._handler)
        self._handler.close()
        self._handler.writer.close()


class _OpenLogs:
    """The logs that are open at the same time: a program may have several servers, and all log to the same logger.

    A line is written once to each destination, with the format of the log that was opened first. The logger has the
    lowest level of all, and its own configuration again once the last log is closed, in whatever order they are closed.
    """

    def __init__(self) -> None:
        self._logs: list[ActiveLog] = []
        self._before = (logging.NOTSET, True)

    def add(self, log: ActiveLog) -> None:
        if not self._logs:
            self._before = (_logger.level, _logger.propagate)
            _logger.propagate = False  # otherwise handlers of the root logger would print our lines again
        self._logs = [*self._logs, log]

    def remove(self, log: ActiveLog) -> None:
        self._logs = [each for each in self._logs if each is not log]
        if self._logs:
            self.set_level()
            return
        level, _logger.propagate = self._before
        _logger.setLevel(level)

    def set_level(self) -> None:
        _logger.setLevel(min(_threshold(each.settings) for each in self._logs))

    def is_first_to_write(self, log: ActiveLog, record: logging.LogRecord) -> bool:
        """Whether no log that was opened before writes *record* to the same destination."""
        for other in self._logs:
            if other is log:
                break
            if other.settings.file == log.settings.file and other.passes(record.levelno):
                return False
        return True


_open_logs = _OpenLogs()


class ServerLine(NamedTuple):
    """A line that the server itself wrote, in whichever of its processes."""

    time: float
    level: str
    text: str  # its text, cut after 2000 characters


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log, as `RecentLines` keeps it."""

    number: int
    time: float
    level: str
    source: str  # the instance that wrote it; empty for the server itself
    text: str


class RecentLines(logging.Handler):
    """Keeps the last lines of the log in memory: those of each model's guests, and those of the server.

    All lines together take at most 16 MiB: beyond that, the lines of the model that logged least recently are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._server: deque[LogLine] = deque(maxlen=_KEPT_SERVER_LINES)
        self._guests: OrderedDict[str, deque[LogLine]] = OrderedDict()
        self._size = 0

    def emit(self, record: logging.LogRecord) -> None:
        guest = _guest_of(record)
        if guest is not None:
            assert isinstance(record.args, tuple)
            line = ServerLine(record.created, _letter(record.levelno), str(record.args[-1])[:_KEPT_CHARACTERS])
            self._keep_of_guest(guest.model, self._numbered(line, guest.instance or guest.model))
        elif (own := _server_line(record)) is not None:
            self._server.append(self._numbered(own))

    def add(self, lines: Iterable[ServerLine]) -> None:
        self.acquire()
        try:
            self._server.extend(self._numbered(line) for line in lines)
        finally:
            self.release()

    def lines_about(self, model: str, after: int = 0) -> list[LogLine]:
        """The last 200 lines behind number *after*: of a model's guests, and of the server about it, oldest first."""
        named = re.compile(rf"(?<![\w.-]){re.escape(model)}(_\d+)*(?![\w-])")
        self.acquire()
        try:
            own = list(self._guests.get(model, ()))
            server = [line for line in self._server if line.number > after]
        finally:
            self.release()
        lines = [*(line for line in own if line.number > after), *(line for line in server if named.search(line.text))]
        return sorted(lines, key=lambda line: line.number)[-_KEPT_LINES:]

    def _numbered(self, line: ServerLine, source: str = "") -> LogLine:
        return LogLine(next(self._numbers), line.time, line.level, source, line.text)

    def _keep_of_guest(self, model: str, line: LogLine) -> None:
        kept = self._guests.setdefault(model, deque())
        self._guests.move_to_end(model)
        kept.append(line)
        self._size += len(line.text) + _LINE_OVERHEAD
        if len(kept) > _KEPT_LINES:
            self._size -= len(kept.popleft().text) + _LINE_OVERHEAD
        while self._size > _KEPT_BYTES:
            _, dropped = self._guests.popitem(last=False)
            self._size -= sum(len(each.text) + _LINE_OVERHEAD for each in dropped)


class _LinesInPassing(logging.Handler):
    """Collects the server's lines of this process, and delivers them from time to time on its event loop."""

    def __init__(self, deliver: Callable[[Sequence[ServerLine]], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._deliver = deliver
        self._loop = loop
        self._lines: deque[ServerLine] = deque(maxlen=_KEPT_SERVER_LINES)
        self._is_due = False
        self._last = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        line = None if _guest_of(record) is not None else _server_line(record)
        if line is None:
            return
        self._lines.append(line)
        if not self._is_due:
            self._is_due = True
            with suppress(RuntimeError):  # the loop has ended, and with it who would get the line
                self._loop.call_soon_threadsafe(self._deliver_later)

    def close(self) -> None:
        super().close()
        self._deliver_now()

    def _deliver_later(self) -> None:
        pause = self._last + _PASS_ON_SECONDS - self._loop.time()
        if pause > 0:
            self._loop.call_later(pause, self._deliver_now)
        else:
            self._deliver_now()

    def _deliver_now(self) -> None:
        self.acquire()
        try:
            lines = list(self._lines)
            self._lines.clear()
            self._is_due = False
        finally:
            self.release()
        self._last = self._loop.time()
        if lines:
            self._deliver(lines)


# What terminals obey beside the controls that JSON escapes: DEL and C1, marks that end a line, and marks that change
# the order in which a line is shown. Names and output of models may have any of them.
_MORE_CONTROLS = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{_MORE_CONTROLS}]")
_CONTROLS_OF_BLOCKS = re.compile(f"[\0-\x08\x0b-\x1f{_MORE_CONTROLS}]")  # in a text of several lines


def _escaped(text: str, controls: re.Pattern[str]) -> str:
    """The text with escapes of JSON in place of controls."""
    return controls.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class LineFormatter(logging.Formatter):
    """Formats a record as one line of the reference's log."""

    def __init__(self, *, iso8601: bool = False, escape: bool = True) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._escape = escape
        # The formatted second is cached: most lines have that of their predecessor. One tuple, because the thread that
        # writes the log formats, too.
        self._formatted_second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        block: str | None = getattr(record, "block", None)
        if block is not None:
            return f"{self._prefix(record)}{text}\n{_escaped(block, _CONTROLS_OF_BLOCKS) if self._escape else block}"
        return self._prefix(record) + (
            _escaped(json.dumps(text, ensure_ascii=False), _CONTROLS) if self._escape else text
        )

    def _prefix(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        cached, stamp = self._formatted_second
        if second != cached:
            form = "%Y-%m-%dT%H:%M:%SZ" if self._iso8601 else "%m%d %H:%M:%S"
            stamp = time.strftime(form, time.gmtime(second))
            self._formatted_second = second, stamp
        where = f"{record.process} {record.filename}:{record.lineno}] "
        if self._iso8601:
            return f"{stamp} {_letter(record.levelno)} {where}"
        micros = int((record.created - second) * 1_000_000)
        return f"{_letter(record.levelno)}{stamp}.{micros:06d} {where}"


class _LevelFilter(logging.Filter):
    """Enables each level separately: errors may be off while warnings are on, which `logging` itself cannot."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        return self.passes(record.levelno)

    def passes(self, level: int) -> bool:
        settings = self._settings
        if level >= logging.ERROR:
            return settings.error
        if level >= logging.WARNING:
            return settings.warning
        if level >= logging.INFO:
            return settings.info
        return level >= _lowest_verbose(settings.verbose)


def logged_levels() -> int:
    """Which levels of guests are logged: a bit for each, by its number in GUEST_LEVELS."""
    filters = [each for handler in _logger.handlers for each in handler.filters if isinstance(each, _LevelFilter)]
    return sum(
        1 << number
        for number, level in GUEST_LEVELS.items()
        if _logger.isEnabledFor(level) and (not filters or any(each.passes(level) for each in filters))
    )


def configure(settings: LogSettings, *, of_libraries: bool = True, is_queued: bool = False) -> ActiveLog:
    """Configure the log until the result is closed; with *of_libraries*, messages of libraries are logged, too.

    With *is_queued*, a thread writes the lines, as a server needs: no call that logs waits for the log's reader.
    """
    return ActiveLog(_LineHandler(settings, is_queued=is_queued), settings, of_libraries=of_libraries)


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


def _guest_of(record: logging.LogRecord) -> GuestName | None:
    """The guest whose line a record is; None for a line of the server."""
    arguments = record.args
    first = arguments[0] if isinstance(arguments, tuple) and arguments else None
    return first if isinstance(first, GuestName) else None


def _server_line(record: logging.LogRecord) -> ServerLine | None:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - the handler of the log reports a message that cannot be formatted
        return None
    return ServerLine(record.created, _letter(record.levelno), text[:_KEPT_CHARACTERS])


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


class _LineHandler(logging.Handler):
    """Formats records and hands the lines to a writer."""

    def __init__(self, settings: LogSettings, *, is_queued: bool) -> None:
        super().__init__()
        destination = StreamDestination(sys.stderr) if settings.file is None else FileDestination(settings.file)
        self.writer = LogWriter(destination, self._report_line, is_direct=not is_queued)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - as `logging` itself, which prints a traceback to stderr and may block there
            line = self.format(_made_record(record.levelno, f"cannot format {record.msg!r} % {record.args!r}: {error}"))
        self.writer.put(_encoded(line), urgent=record.levelno >= logging.WARNING)

    def _report_line(self, text: str) -> bytes:
        return _encoded(self.format(_made_record(logging.WARNING, text)))


def _made_record(level: int, text: str) -> logging.LogRecord:
    """A record of this module itself, which is not filtered."""
    return logging.LogRecord(ROOT, level, __file__, 0, "%s", (text,), None)


def _encoded(line: str) -> bytes:
    return f"{line}\n".encode("utf-8", "backslashreplace")
