"""Writes the section on scaling of bench/results.md."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.report import SCALING_BEGIN, SCALING_END, processor, table, with_section
from bench.results import THEIRS, Results
from bench.scaling import session
from bench.scaling.load import GENERATOR
from bench.scaling.processes import FIRST, FURTHER, GUESTS
from bench.scaling.session import ALL, P50, P99, RATE, name_of

PICTURE = "benchmarks-scaling.svg"
_INTRODUCTION = """\
Written by `make bench-scaling`: naiad with N processes (`--processes=N`), and the
real Triton where it is installed, in turns. Figures are medians; a ratio is the median of the ratios of each turn. CPU
is from `/proc`: microseconds per request of the first process (of Triton the server), of the
further ones, of the guests (of Triton the stubs), and of all processes. `add_sub` has {instances}; its tensors have 16
elements."""
_CONNECTIONS = """\
Connections that have carried one request each and stay open, beside {active:,} clients that send requests to
`add_sub`. Memory is what the PSS of the server's processes grew by for each idle connection; the kernel's buffers are
not in it."""
_BUSY = " **The machine was busy with other work: rates and latencies mean little, CPU per request and ratios more.**"
_QUIET = 2.0
"""Load average for each core above which other work disturbs the run; the run itself causes less."""
_LARGE_MACHINE = 16
_NO_PROCESSES = "This version has no `--processes`, so N is 1."


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound for a figure of the run.

    Attributes:
        text: What is measured.
        bound: The bound.
        at_least: Whether the figure must reach the bound; otherwise it must not exceed it.
        figure: Finds the figure; None if it was not measured.
        unit: Follows figure and bound in the table.
        cores: Cores that the machine must have for the goal to apply.
    """

    text: str
    bound: float
    at_least: bool
    figure: Callable[[Results], float | None]
    unit: str = "x"
    cores: int = 0

    def row(self, results: Results, cores: int) -> Sequence[str]:
        """The row of the table of goals."""
        bound = f"{'at least' if self.at_least else 'at most'} {self.bound:g} {self.unit}"
        value = self.figure(results) if cores >= self.cores else None
        if value is None:
            reason = f"needs {self.cores} cores" if cores < self.cores else "not measured"
            return self.text, bound, reason, ""
        is_met = value >= self.bound if self.at_least else value <= self.bound
        return self.text, bound, f"{value:.2f} {self.unit}", "yes" if is_met else "**no**"


def _ratio(case: str, metric: str, one: str, other: str) -> Callable[[Results], float | None]:
    return lambda results: results.ratio(case, metric, one, other)


def _best(case: str, other: str) -> Callable[[Results], float | None]:
    """The highest ratio of the rate of naiad with several processes to another server's."""

    def figure(results: Results) -> float | None:
        ours = [name for name in results.samples.get(case, {}) if name not in {THEIRS, ONE}]
        ratios = [ratio for name in ours if (ratio := results.ratio(case, RATE, name, other)) is not None]
        return max(ratios, default=None)

    return figure


ONE, TWO = name_of(1), name_of(2)
GOALS = (
    Goal("CPU of all processes, 16 clients, N=1 / Triton", 0.33, False, _ratio(session.ONE_MODEL, ALL, ONE, THEIRS)),
    Goal("CPU of all processes, 16 clients, N=2 / N=1", 1.1, False, _ratio(session.ONE_MODEL, ALL, TWO, ONE)),
    Goal("one client, p50, N=2 / N=1", 1.1, False, _ratio(session.ONE_CLIENT, P50, TWO, ONE)),
    Goal("one client beside a busy process, p50, N=1 / Triton", 1.0, False, _ratio(session.BESIDE, P50, ONE, THEIRS)),
    Goal("one client beside a busy process, p50, N=2 / Triton", 1.0, False, _ratio(session.BESIDE, P50, TWO, THEIRS)),
    Goal("identity of 1 MB, CPU of all processes, N=2 / N=1", 1.0, False, _ratio(session.LARGE, ALL, TWO, ONE)),
    Goal("one model, best rate / N=1", 3, True, _best(session.ONE_MODEL, ONE), cores=_LARGE_MACHINE),
    Goal("eight models, best rate / N=1", 6, True, _best(session.EIGHT_MODELS, ONE), cores=_LARGE_MACHINE),
    Goal("one model, best rate / Triton", 2, True, _best(session.ONE_MODEL, THEIRS), cores=_LARGE_MACHINE),
)


def section(results: Results, settings: str, cores: int) -> str:
    """The text of the section, with its markers."""
    instances = "one instance" if session.INSTANCES == 1 else f"{session.INSTANCES} instances"
    parts = [SCALING_BEGIN, "## Several processes", _INTRODUCTION.format(instances=instances), _facts(settings, cores)]
    if list(_servers(results)) in ([ONE], [ONE, THEIRS]):
        parts.append(_NO_PROCESSES)
    parts.append(table(("", "goal", "reached", "met"), [goal.row(results, cores) for goal in GOALS]))
    if session.ONE_MODEL in results.samples:
        parts.append(f"![Requests per second and CPU per request over the number of processes]({PICTURE})")
    for name, case in session.CASES.items():
        if name in results.samples:
            parts.append(f"### {case.title[0].upper()}{case.title[1:]}\n\n{_case_table(results, name)}")
    if session.CONNECTIONS in results.samples:
        parts.append(f"### Idle connections\n\n{_CONNECTIONS.format(active=session.ACTIVE)}\n\n{_connections(results)}")
    return "\n\n".join([*parts, SCALING_END])


def write(page: Path, made: str, picture: str) -> None:
    """Put the section into the page, and the picture beside it."""
    page.write_text(with_section(page.read_text(), made, (SCALING_BEGIN, SCALING_END)))
    page.with_name(PICTURE).write_text(picture)


def _facts(settings: str, cores: int) -> str:
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    load = os.getloadavg()[1]
    facts = f"{today}, {processor()}, {cores} cores, load average at the end {load:.1f}; "
    return facts + f"load from {GENERATOR}; {settings}.{_BUSY if load > _QUIET * cores else ''}"


def _servers(results: Results) -> dict[str, None]:
    return {server: None for samples in results.samples.values() for server in samples}


def _case_table(results: Results, case: str) -> str:
    head = ("", "requests/s", "/ N=1", "p50 us", "/ N=1", "/ Triton", "p99 us",
            "CPU us first process", "further ones", "guests", "all", "/ N=1", "/ Triton")  # fmt: skip
    rows = []
    for server in results.samples[case]:
        cells = [server, _figure(results, case, server, RATE), _quotient(results, case, RATE, server, ONE)]
        cells += [_figure(results, case, server, P50)]
        cells += [_quotient(results, case, P50, server, other) for other in (ONE, THEIRS)]
        cells += [_figure(results, case, server, metric) for metric in (P99, FIRST, FURTHER, GUESTS, ALL)]
        cells += [_quotient(results, case, ALL, server, other) for other in (ONE, THEIRS)]
        rows.append(cells)
    return table(head, rows)


def _connections(results: Results) -> str:
    case = session.CONNECTIONS
    head = ("", "idle connections", "bytes each", "requests/s", "p50 us", "p99 us", "CPU us all")
    metrics = (session.IDLE_COUNT, session.IDLE_BYTES, RATE, P50, P99, ALL)
    rows = [
        [server, *(_figure(results, case, server, metric) for metric in metrics)] for server in results.samples[case]
    ]
    return table(head, rows)


def _figure(results: Results, case: str, server: str, metric: str) -> str:
    value = results.median(case, server, metric)
    return "-" if value is None else f"{value:,.0f}"


def _quotient(results: Results, case: str, metric: str, one: str, other: str) -> str:
    ratio = None if one == other else results.ratio(case, metric, one, other)
    return "-" if ratio is None else f"{ratio:.2f}"
