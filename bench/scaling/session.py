"""The cases, and their measurement with all servers in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import repository
from bench.quiet import Turn, take_turns
from bench.results import THEIRS, Results
from bench.scaling.client import idle_connections, raise_file_limit
from bench.scaling.load import Load, infer_request, measure
from bench.scaling.processes import ROLES, connection_memory, read_family, spent
from bench.servers import HOST, Program, Server, running

CORES = len(os.sched_getaffinity(0))
COPIES = 8
# Requests of eight models from many clients keep the cores of a large machine busy.
EIGHT_CLIENTS = 16 if CORES < 8 else 64
# Each process has some of them; and one guest, which runs one request at a time, would be what limits the rate.
INSTANCES = max(4, CORES // 4)
IDLE, ACTIVE = 10_000, 1_000
RATE, P50, P99, ALL = "requests/s", "p50", "p99", "all"
IDLE_COUNT, IDLE_BYTES = "idle connections", "bytes per idle connection"
ONE_MODEL, ONE_CLIENT, LARGE, EIGHT_MODELS = "add_sub-16", "add_sub-1", "identity_1MB-4", f"eight-{EIGHT_CLIENTS}"
BESIDE, CONNECTIONS = "add_sub-1-beside", "connections"
_INPUTS, _ELEMENTS = ("INPUT0", "INPUT1"), 16
_WARM_UP_SECONDS = 1.0
_BUSY = "while True: pass"


@dataclasses.dataclass(frozen=True)
class Case:
    """A load, and whether it runs beside a process that keeps one core busy."""

    title: str
    load: Load
    is_beside_busy_process: bool = False


_ADD_SUB = infer_request("add_sub", _INPUTS, _ELEMENTS)
CASES = {
    ONE_MODEL: Case("`add_sub`, 16 clients", Load([_ADD_SUB], 16)),
    ONE_CLIENT: Case("`add_sub`, one client", Load([_ADD_SUB], 1)),
    BESIDE: Case("`add_sub`, one client beside a process that keeps a core busy", Load([_ADD_SUB], 1), True),
    LARGE: Case(
        "identity of 1 MB, 4 clients",
        Load([infer_request("identity_1MB", ["INPUT0"], repository.IDENTITY_SIZES["1MB"])], 4),
    ),
    EIGHT_MODELS: Case(
        f"eight models like `add_sub` in turn, {EIGHT_CLIENTS} clients",
        Load([infer_request(f"model_{index:02}", _INPUTS, _ELEMENTS) for index in range(COPIES)], EIGHT_CLIENTS),
    ),
}
CONNECTIONS_LOAD = Load([_ADD_SUB], ACTIVE)
NAMES = (*CASES, CONNECTIONS)


def name_of(processes: int) -> str:
    """How results name naiad with this many processes."""
    return f"N={processes}"


def counts(cores: int) -> list[int]:
    """The numbers of processes to measure: the powers of two up to the cores."""
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """One run.

    Attributes:
        programs: The servers, in the order of their turns.
        rounds: Number of turns of each server for one case.
        window: Seconds of one measurement.
    """

    programs: Sequence[Program]
    rounds: int
    window: float
    results: Results = dataclasses.field(default_factory=Results)

    def run(self, names: Sequence[str]) -> Results:
        """Measure the named cases."""
        with tempfile.TemporaryDirectory(prefix="naiad-bench-", ignore_cleanup_errors=True) as folder:
            work = Path(folder)
            repository.write_scaling_models(work / "models", COPIES, INSTANCES)
            self._measure_loads(work, [name for name in names if name in CASES])
            if CONNECTIONS in names:
                take_turns(self.results, CONNECTIONS, self.rounds, functools.partial(self._connections, work))
        return self.results

    def _measure_loads(self, work: Path, names: Sequence[str]) -> None:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(running(each, work / "models", work)) for each in self.programs if names]
            for name in names:
                case = CASES[name]
                for server in servers:  # the first requests of a model are slow
                    measure(server.http_port, case.load, _WARM_UP_SECONDS)
                with _busy_process() if case.is_beside_busy_process else contextlib.nullcontext():
                    take_turns(self.results, name, self.rounds, functools.partial(self._turn, servers, case.load))

    def _turn(self, servers: Sequence[Server], load: Load) -> Turn:
        return {server.program.name: figures(server, load, self.window) for server in servers}

    def _connections(self, work: Path) -> Turn:
        """Each server is started again: memory that earlier requests left would hide that of connections."""
        count = raise_file_limit(IDLE + ACTIVE) - ACTIVE
        turn = {}
        for program in self.programs:
            if program.name == THEIRS:
                continue  # the table of the goal has no figure for it
            with running(program, work / "models", work) as server:
                measure(server.http_port, CONNECTIONS_LOAD, _WARM_UP_SECONDS)
                before = connection_memory(server.pid)
                with idle_connections(HOST, server.http_port, count):
                    each = (connection_memory(server.pid) - before) / count
                    active = figures(server, CONNECTIONS_LOAD, self.window)
            turn[program.name] = {**active, IDLE_COUNT: float(count), IDLE_BYTES: each}
        return turn


def figures(server: Server, load: Load, window: float) -> dict[str, float]:
    """Requests/s, latencies in microseconds, and CPU in microseconds per request by role and in all."""
    before = read_family(server.pid)
    reading = measure(server.http_port, load, window)
    seconds = spent(before, read_family(server.pid), server.pid)
    cpu = {role: seconds[role] / reading.requests * 1e6 for role in ROLES}
    return {RATE: reading.requests / reading.seconds, P50: reading.p50, P99: reading.p99, **cpu, ALL: sum(cpu.values())}


@contextlib.contextmanager
def _busy_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as process:
        try:
            yield
        finally:
            process.kill()
