"""Showing progress to whoever is there: always in the log, and as a bar if somebody sits at a terminal."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO, cast

from naiad.environments.progress import LogReporter, Progress, Reporter

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

__all__ = ["BarReporter", "default_reporter"]

# What is over before a person has looked up needs no bar; steps this short would only flicker.
_SHOWN_FROM = 0.4


def default_reporter(stream: TextIO | None = None) -> Reporter:
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

    def progress(self, event: Progress) -> None:
        """Draw the event."""
        with self._lock:
            if event.finished:
                self._take_away(event)
            elif event.seconds >= _SHOWN_FROM:
                self._draw(event)

    def _draw(self, event: Progress) -> None:
        bars = self._bars
        if bars is None:
            bars = self._bars = _start_bars(self._stream)
        key = (event.step, event.path)
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(f"{event.step} {event.path.name}", total=event.total)
        bars.update(self._tasks[key], completed=event.done, refresh=True)

    def _take_away(self, event: Progress) -> None:
        task = self._tasks.pop((event.step, event.path), None)
        if self._bars is None or task is None:
            return
        self._bars.remove_task(task)
        if not self._tasks:
            self._bars.stop()
            self._bars = None


class _Both:
    """Tells two reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def progress(self, event: Progress) -> None:
        for reporter in self._reporters:
            reporter.progress(event)


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
