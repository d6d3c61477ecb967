"""Progress of long steps: throttled events, the log, and bars on a terminal."""

from __future__ import annotations

import logging
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol, TextIO, cast

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

__all__ = ["BarReporter", "default_reporter"]

_log = logging.getLogger("naiad.environments")

# Often enough for a progress bar to look alive, seldom enough to cost nothing.
_EVENT_INTERVAL = 0.2
_LOG_INTERVAL = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """How far one step is.

    Attributes:
        step: What is being done: `reading` or `unpacking`.
        label: The model it is done for, empty if for none.
        path: The archive.
        done: Bytes of the archive dealt with.
        total: Bytes of the archive.
        seconds: Time since the step began.
        finished: Whether this is the step's last event.
        failed: Whether it is the last because the step went wrong.
    """

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
        """Bytes per second so far."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        share = 100 if self.total == 0 else min(100, self.done * 100 // self.total)
        who = f" for '{self.label}'" if self.label else ""
        return (
            f"{self.step} {self.path}{who}: {self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB "
            f"({share} %), {self.rate / 1e6:.1f} MB/s"
        )


class ProgressReporter(Protocol):
    """Whoever shows progress. Called from the thread that does the work; must not block or raise."""

    def on_progress(self, event: ProgressEvent) -> None:
        """Take note of one event."""


class LogReporter:
    """Writes a line every few seconds, and one at the end of a step that took long enough to wonder about."""

    def __init__(self) -> None:
        self._last: dict[Path, float] = {}

    def on_progress(self, event: ProgressEvent) -> None:
        """Log the event if the last line about this archive is old enough."""
        if event.finished:
            self._last.pop(event.path, None)
            level = logging.INFO if event.seconds >= 1 and not event.failed else logging.DEBUG
            _log.log(level, "%s %s", "stopped" if event.failed else "done", event)
        elif event.seconds - self._last.get(event.path, 0.0) >= _LOG_INTERVAL:
            self._last[event.path] = event.seconds
            _log.info("%s", event)


class ProgressMeter:
    """Counts one step and passes events on at a bearable rate; on leaving its `with` the step is over."""

    def __init__(self, reporter: ProgressReporter, *, step: str, label: str, path: Path, total: int) -> None:
        self._reporter = reporter
        self._step = step
        self._label = label
        self._path = path
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._last = self._began

    def advance(self, count: int) -> None:
        """Note that so many more bytes are dealt with."""
        self._done += count
        now = time.monotonic()
        if now - self._last >= _EVENT_INTERVAL:
            self._last = now
            self._emit(now, finished=False)

    def __enter__(self) -> ProgressMeter:  # noqa: PYI034 - typing.Self is 3.11+
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever draws a bar has to take it away, however the step ends.
        self._emit(time.monotonic(), finished=True, failed=kind is not None)

    def _emit(self, now: float, *, finished: bool, failed: bool = False) -> None:
        event = ProgressEvent(
            step=self._step,
            label=self._label,
            path=self._path,
            done=self._done,
            total=self._total,
            seconds=now - self._began,
            finished=finished,
            failed=failed,
        )
        self._reporter.on_progress(event)


# What is over before a person has looked up needs no bar; steps this short would only flicker.
_SHOWN_FROM = 0.4


def default_reporter(stream: TextIO | None = None) -> ProgressReporter:
    """The log, and beside it a bar if *stream* (stderr unless given) is a terminal."""
    stream = sys.stderr if stream is None else stream
    return _Both(LogReporter(), BarReporter(stream)) if stream.isatty() else LogReporter()


class BarReporter:
    """Draws a bar for each archive that is being read or unpacked, and takes it away at the end.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # Several archives are unpacked at a time, each on a thread of its own.
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._tasks: dict[tuple[str, Path], TaskID] = {}

    def on_progress(self, event: ProgressEvent) -> None:
        """Draw the event."""
        with self._lock:
            if event.finished:
                self._take_away(event)
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

    def _take_away(self, event: ProgressEvent) -> None:
        task = self._tasks.pop((event.step, event.path), None)
        if self._bars is None or task is None:
            return
        self._bars.remove_task(task)
        if not self._tasks:
            self._bars.stop()
            self._bars = None


class _Both:
    """Tells two reporters."""

    def __init__(self, *reporters: ProgressReporter) -> None:
        self._reporters = reporters

    def on_progress(self, event: ProgressEvent) -> None:
        for reporter in self._reporters:
            reporter.on_progress(event)


class _AtLineStart:
    """A terminal whose cursor goes back to the start of its line, so that the log's next line replaces a bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text if text.endswith("\n") else text + "\r")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def _start_bars(stream: TextIO) -> Bars:
    # Imported with the first bar: 40 ms that a server without a terminal need not spend.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=cast("IO[str]", _AtLineStart(stream))),
        transient=True,
        # stdout and stderr stay as they are: they are the log's.
        redirect_stdout=False,
        redirect_stderr=False,
        # Drawn as events come, which is often enough and needs no thread.
        auto_refresh=False,
    )
    bars.start()
    return bars
