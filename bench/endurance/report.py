"""Results of a run as lines of text, and as the page bench/endurance/results.md."""

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
Each load ran three times on its own server, and more often if something had grown each time:
{size.chains} clients of chains three models deep, {size.part:g} s each time;
{size.streams} streams of {size.responses} responses;
{size.stalled} clients that stop reading streams of twice as many, 100 KiB each;
{size.cancelling} clients, most of which cancel at a random time, {size.part:g} s each time.
Counts are the sums of all runs. Memory (private memory of the processes), descriptors and threads are read before the
first request > after each run and a pause > (when memory was highest) > after the last run and a pause."""
_WRONG = """\
These count as wrong: a request without a response, a response of another request, a response twice or out of order,
a model whose inference count differs from the number of requests, an error in the log,
memory that grows each time by more than {host} MiB in the server or {guest} MiB in a guest,
threads that grow each time, more descriptors after the last run than after the first,
a page of a segment in use after the last response."""
_PROSE = "<!-- prose: kept when this page is regenerated -->"


def line(trial: Trial) -> str:
    """The results of one load on one line, with one line below for each violation."""
    words = "  ".join(f"{name} {value}" for name, value in zip(_COLUMNS[1:], _cells(trial), strict=True))
    problems = "".join(f"\n    {problem}" for problem in trial.account.violations)
    return f"{trial.name}: {words}{problems}"


def write(page: Path, trials: Sequence[Trial], size: Size, command: str, environment: Path | None) -> None:
    """Regenerate the page; the text below the `_PROSE` marker is written by hand and kept."""
    prose = page.read_text().partition(_PROSE)[2] if page.exists() else "\n"
    rows = [f"| {' | '.join((trial.name, *_cells(trial)))} |" for trial in trials]
    version = environment.name.rpartition("-")[2] if environment else ""
    other = f', guests of Python {version} in the loads that say "other Python"' if environment else ""
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
