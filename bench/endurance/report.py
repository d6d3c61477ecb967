"""What was sent and answered, and what was held, as lines and as a page."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from bench.endurance.measure import MIB, Held
from bench.endurance.scenarios import Size
from bench.endurance.trial import GUEST_GROWTH, HOST_GROWTH, Trial

_COLUMNS = (
    "load",
    "sent",
    "answered",
    "given up",
    "responses",
    "server MiB",
    "guests MiB",
    "segments MiB",
    "descriptors",
    "threads",
    "wrong",
)
_WRITTEN = "Written by `{command}` on {date}: {cores} cores, Python {python}{other}."
_LOADS = """\
Each load ran three times on a server of its own, more often where something had grown each time:
{size.chains} clients of chains three models deep, {size.part:g} s each time;
{size.streams} streams of {size.responses} responses;
{size.stalled} clients that stop reading streams of twice as many, 100 KiB each;
{size.cancelling} clients of which most give up at a random moment, {size.part:g} s each time.
Counts are those of all times together. Memory (a process's own), descriptors and threads are those before anything was
sent > after each time and a pause > (when memory was highest) > after the last time and a pause."""
_WRONG = """\
Wrong is: a request without its answer, an answer of another request, a response twice or out of order,
a model that inferred more or less often than it was asked, an error in the log,
memory that grows each time by more than {host} MiB in the server or {guest} MiB in a guest, threads that do,
a descriptor more after the last time than after the first, a page of a segment in use after the last answer."""
_PROSE = "<!-- prose: kept when this page is written anew -->"


def line(trial: Trial) -> str:
    """One load on one line, and what was wrong below."""
    words = "  ".join(f"{name} {value}" for name, value in zip(_COLUMNS[1:], _cells(trial), strict=True))
    problems = "".join(f"\n    {problem}" for problem in trial.account.violations)
    return f"{trial.name}: {words}{problems}"


def write(page: Path, trials: Sequence[Trial], size: Size, command: str, environment: Path | None) -> None:
    """Write the page anew; what stands below the mark for prose is kept."""
    prose = page.read_text().partition(_PROSE)[2] if page.exists() else "\n"
    rows = [f"| {' | '.join((trial.name, *_cells(trial)))} |" for trial in trials]
    other = f", guests of Python {environment.name.rpartition('-')[2]} where it says so" if environment else ""
    text = [
        "# Endurance",
        "",
        _WRITTEN.format(
            command=command.strip(),
            date=dt.datetime.now(tz=dt.timezone.utc).date(),
            cores=os.cpu_count(),
            python=platform.python_version(),
            other=other,
        ),
        "",
        _LOADS.format(size=size),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{' --- |' * len(_COLUMNS)}",
        *rows,
        "",
        _WRONG.format(host=HOST_GROWTH // MIB, guest=GUEST_GROWTH // MIB),
        "",
        _PROSE,
    ]
    page.write_text("\n".join(text) + prose)


def _cells(trial: Trial) -> tuple[str, ...]:
    account = trial.account
    readings = (trial.before, *trial.pauses[:-1], trial.most, trial.pauses[-1])
    hosts: list[Held] = [reading.host for reading in readings]
    guests: list[Held] = [reading.guest for reading in readings]
    both = [host + guest for host, guest in zip(hosts, guests, strict=True)]
    return (
        str(account.sent),
        str(account.answered),
        str(account.given_up),
        str(account.responses),
        _course([f"{held.private / MIB:.1f}" for held in hosts]),
        _course([f"{held.private / MIB:.1f}" for held in guests]),
        _course([f"{held.segments / MIB:.1f}" for held in both]),
        _course([str(held.descriptors) for held in both]),
        _course([str(held.threads) for held in both]),
        str(account.violation_count),
    )


def _course(values: Sequence[str]) -> str:
    *course, most, last = values
    return f"{' > '.join(course)} > ({most}) > {last}"
