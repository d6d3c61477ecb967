"""Runs the cases with both servers in turns (A B A B), so that changes of the machine's speed affect both alike."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from bench import cases, json_requests, repository
from bench.environment import Packed
from bench.perf import WINDOWS, Load, measure
from bench.quiet import Turn, take_turns
from bench.reference import Reference
from bench.results import OURS, Results
from bench.servers import Program, Server, running
from bench.settling import rest_on

WARM_UP = Load(model="add_sub", protocol="http", concurrency=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """One run: the measured servers, and the number and length of the measurements.

    Attributes:
        programs: The servers, in the order of their turns.
        rounds: Number of turns of each server for one case.
        promised_rounds: Number of turns in loads that have a target.
        window: Seconds of each of perf_analyzer's three windows.
    """

    reference: Reference
    programs: Sequence[Program]
    rounds: int
    promised_rounds: int
    window: float
    results: Results = dataclasses.field(default_factory=Results)

    def run(self, names: Collection[str], packed: Packed | None) -> Results:
        """Measure the named cases."""
        loads = {name: load for name, load in cases.LOADS.items() if name in names}
        in_json = {name: load for name, load in json_requests.LOADS.items() if name in names}
        if loads or in_json:
            self._measure_loads(loads, in_json)
        for name, count in cases.STARTS.items():
            if name in names:
                self._measure_starts(name, count)
        if packed is not None and {cases.ENVIRONMENT_FIRST, cases.ENVIRONMENT_SECOND} & set(names):
            self._measure_environment(packed)
        return self.results

    def _measure_loads(self, loads: dict[str, Load], in_json: dict[str, json_requests.Load]) -> None:
        with contextlib.ExitStack() as stack:
            work = stack.enter_context(_folder())
            repository.write_load_models(work / "models")
            servers = [stack.enter_context(running(each, work / "models", work)) for each in self.programs]
            for server in servers:
                measure(self.reference, server, WARM_UP, window=0.3)
            turns = {name: functools.partial(self._turn, servers, load) for name, load in loads.items()}
            turns |= {name: functools.partial(self._json_turn, servers, load) for name, load in in_json.items()}
            promised = {target.case for target in cases.TARGETS}
            compared = {case for target in cases.OWN_TARGETS for case in (target.case, target.beside)}
            for name, turn in turns.items():
                if name not in compared:
                    take_turns(self.results, name, self.promised_rounds if name in promised else self.rounds, turn)
            for target in cases.OWN_TARGETS:
                # By turns as well, or the machine's speed would change between the two cases.
                for _ in range(self.promised_rounds):
                    for name in (target.case, target.beside):
                        if name in turns:
                            take_turns(self.results, name, 1, turns[name])

    def _turn(self, servers: Sequence[Server], load: Load) -> Turn:
        return {server.program.name: measure(self.reference, server, load, self.window) for server in servers}

    def _json_turn(self, servers: Sequence[Server], load: json_requests.Load) -> Turn:
        seconds = self.window * WINDOWS
        return {server.program.name: json_requests.measure(server, load, seconds) for server in servers}

    def _measure_starts(self, name: str, count: int) -> None:
        with _folder() as work:
            repository.write_copies(work / "models", count)
            take_turns(self.results, name, self.rounds, functools.partial(self._start, work, count))

    def _start(self, work: Path, count: int) -> Turn:
        figures = {}
        for program in self.programs:
            with running(program, work / "models", work) as server:
                memory = dataclasses.asdict(server.memory(count))
                figures[program.name] = {"seconds": server.start_seconds, **memory}
        return figures

    def _measure_environment(self, packed: Packed) -> None:
        # The reference unpacks into the temporary folder and removes it at each stop; naiad keeps its store. On some
        # file systems creating files is slow for a while after others were removed. No start may include this delay.
        rest = rest_on(Path(tempfile.gettempdir()))
        with _folder(packed.archive.parent) as work:
            for turn in range(self.rounds):
                place = work / str(turn)
                models = {each.name: self._write_environment_models(each, packed, place) for each in self.programs}
                for name in (cases.ENVIRONMENT_FIRST, cases.ENVIRONMENT_SECOND):
                    # The reference starts last, so that no files are removed before either of the two starts.
                    for program in reversed(self.programs):
                        rest.wait()
                        seconds = _start_seconds(self._without_packages(program), models[program.name], place)
                        self.results.add(name, program.name, {"seconds": seconds})
                    rest.removed()

    def _write_environment_models(self, program: Program, packed: Packed, work: Path) -> Path:
        models = work / f"models-{program.name}"
        # The reference's stub is compiled for one Python; naiad's stub runs in the environment's own interpreter.
        stub = None if program.name == OURS else self.reference.stub(packed.python)
        repository.write_with_environment(models, packed.archive, stub)
        return models

    def _without_packages(self, program: Program) -> Program:
        if program.name == OURS:
            return program
        return dataclasses.replace(program, environ=self.reference.server_environ(packages=False))


def _start_seconds(program: Program, models: Path, work: Path) -> float:
    with running(program, models, work) as server:
        return server.start_seconds


@contextlib.contextmanager
def _folder(within: Path | None = None) -> Iterator[Path]:
    # Not TemporaryDirectory, which raises on errors: a killed server may leave read-only folders of an environment.
    folder = Path(tempfile.mkdtemp(prefix="naiad-bench-", dir=within))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
