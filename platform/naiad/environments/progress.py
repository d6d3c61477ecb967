"""Progress of long steps: throttled events, the log, and bars on a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol, TextIO, cast

from naiad.core.blocking import check_cancelled

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_log = logging.getLogger("naiad.environments")

# Seconds between events: smooth for a progress bar, and negligible in cost.
_EVENT_INTERVAL = 0.2
_LOG_INTERVAL = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """The progress of one step (`downloading`, `unpacking` ...) in bytes; *total* is 0 if unknown."""

    step: str
    label: str
    path: Path
    done: int
    total: int
    seconds: float
    finished: bool
    failed: bool = False

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        share = 100 if self.total == 0 else min(100, self.done * 100 // self.total)
        model = f" for '{self.label}'" if self.label else ""
        return (
            f"{self.step} {self.path}{model}: {self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB "
            f"({share} %), {self.rate / 1e6:.1f} MB/s"
        )


class ProgressReporter(Protocol):
    """Receives progress events, in the thread that does the work. Must neither block nor raise."""

    def on_progress(self, event: ProgressEvent) -> None: ...


class LogReporter:
    """Logs a line every few seconds, and one at the end of a step that took a second or more."""

    def __init__(self) -> None:
        self._last: dict[Path, float] = {}

    def on_progress(self, event: ProgressEvent) -> None:
        if event.finished:
            self._last.pop(event.path, None)
            level = logging.INFO if event.seconds >= 1 and not event.failed else logging.DEBUG
            _log.log(level, "%s %s", "stopped" if event.failed else "done", event)
        elif event.seconds - self._last.get(event.path, 0.0) >= _LOG_INTERVAL:
            self._last[event.path] = event.seconds
            _log.info("%s", event)


class ProgressMeter:
    """Counts the bytes of one step and sends throttled events. The step ends when its `with` block exits."""

    def __init__(self, reporter: ProgressReporter, *, step: str, label: str, path: Path, total: int) -> None:
        self._reporter = reporter
        self._event = ProgressEvent(step=step, label=label, path=path, done=0, total=total, seconds=0.0, finished=False)
        self._began = time.monotonic()
        self._last = self._began
        self._done = 0

    def advance(self, count: int) -> None:
        """Add processed bytes; raises `WorkCancelledError` if nobody needs the step any more."""
        check_cancelled()
        self._done += count
        now = time.monotonic()
        if now - self._last >= _EVENT_INTERVAL:
            self._last = now
            self._emit(now)

    def __enter__(self) -> ProgressMeter:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Sent on errors too, so that reporters remove their progress bar.
        self._emit(time.monotonic(), finished=True, failed=kind is not None)

    def _emit(self, now: float, *, finished: bool = False, failed: bool = False) -> None:
        seconds = now - self._began
        event = replace(self._event, done=self._done, seconds=seconds, finished=finished, failed=failed)
        self._reporter.on_progress(event)


# Seconds. A bar for a shorter step would only flicker.
_SHOWN_FROM = 0.4


def default_reporter(stream: TextIO | None = None) -> ProgressReporter:
    """A reporter for the log, and for bars if *stream* (default: stderr) is a terminal."""
    stream = sys.stderr if stream is None else stream
    return _FanOutReporter(LogReporter(), BarReporter(stream)) if stream.isatty() else LogReporter()


@contextlib.contextmanager
def steps_shown(stream: TextIO | None = None) -> Iterator[None]:
    """A context in which a command, which has no log, prints what is logged of environments on *stream* (stderr)."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


class BarReporter:
    """Draws a bar for each running step, and removes it at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # Several archives may be unpacked concurrently, each in its own thread.
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._tasks: dict[tuple[str, Path], TaskID] = {}

    def on_progress(self, event: ProgressEvent) -> None:
        with self._lock:
            if event.finished:
                self._remove(event)
            elif event.seconds >= _SHOWN_FROM:
                self._draw(event)

    def _draw(self, event: ProgressEvent) -> None:
        bars = self._bars
        if bars is None:
            bars = self._bars = _start_bars(self._stream)
        key = (event.step, event.path)
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(f"{event.step} {event.path.name}", total=event.total)
        bars.update(self._tasks[key], completed=event.done, refresh=True)

    def _remove(self, event: ProgressEvent) -> None:
        task = self._tasks.pop((event.step, event.path), None)
        if self._bars is None or task is None:
            return
        self._bars.remove_task(task)
        if not self._tasks:
            self._bars.stop()
            self._bars = None


class _FanOutReporter:
    def __init__(self, *reporters: ProgressReporter) -> None:
        self._reporters = reporters

    def on_progress(self, event: ProgressEvent) -> None:
        for reporter in self._reporters:
            reporter.on_progress(event)


class _CarriageReturnStream:
    """A terminal stream that returns the cursor to the start of the line, so that the next log line replaces a bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text if text.endswith("\n") else text + "\r")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def _start_bars(stream: TextIO) -> Bars:
    # Imported with the first bar: it takes 40 ms, and a server without a terminal does not need it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=cast("IO[str]", _CarriageReturnStream(stream))),
        transient=True,
        # stdout and stderr belong to the log.
        redirect_stdout=False,
        redirect_stderr=False,
        # Refreshed by each event, so no refresh thread is needed.
        auto_refresh=False,
    )
    bars.start()
    return bars
