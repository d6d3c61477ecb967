"""Runs the tests of an area for each mutant, in a fork of a process that has collected them once.

A fork replaces the code of the mutant's functions where they are, so nothing is imported or collected again, and files
stay as they are. Only tests that call one of these functions run: a run without mutants, which must pass, shows which.
A mutant takes 0.5 to 3 s. mutmut 3.8 names modules by their paths, which fails for `platform/`, a folder that cannot be
a package; cosmic-ray 8.7 writes mutants into the checkout and starts the tests anew for each. Bodies of functions alone
have mutants: other modules have copied constants before the fork.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from mutation.operators import CodeKey, Mutant, Source

KILLED, TIMED_OUT, SURVIVED, NOT_REACHED = "killed", "timed out", "survived", "not reached"

_MOST_DATA = 4 << 30
"""Bytes."""
_FIRST_RUN_SECONDS = 3600
"""How long the run without mutants may take, which traces all calls: on a busy machine 230 fast tests took ten minutes."""


class MutationError(Exception):
    """The tests cannot judge mutants: they fail without any."""


@dataclass(frozen=True)
class Calls:
    """What the run without mutants has shown of one test.

    Attributes:
        seconds: How long it took.
        functions: The functions that it called.
    """

    seconds: float
    functions: frozenset[CodeKey]


class Runner:
    """Collects tests and judges mutants; a plugin of pytest, which forks where tests would run.

    Attributes:
        outcomes: What became of each mutant.
    """

    def __init__(
        self, sources: Sequence[Source], mutants: Sequence[Mutant], jobs: int, grace: int, folder: Path
    ) -> None:
        """Judge *mutants* of *sources* (see `judge`) in processes that keep their files in *folder*."""
        self.outcomes: dict[Mutant, str] = {}
        self._sources = sources
        self._mutants = mutants
        self._jobs = jobs
        self._grace = grace
        self._folder = folder
        self._report = folder / "calls.json"
        self._is_child = False
        self._forks = 0
        self._recorder: _Recorder | None = None
        self._error = ""

    def run(self, tests: Sequence[str], marks: str) -> None:
        """Run it.

        Raises:
            MutationError: If the tests fail without mutants.
        """
        arguments = ["-q", "-x", "--capture=sys", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", marks]
        with _output_in(self._folder / "output") as output:
            code: int | pytest.ExitCode = pytest.ExitCode.INTERNAL_ERROR
            try:
                code = pytest.main([*arguments, *tests], plugins=[self])
            finally:  # pytest raises as it ends if a mutant leaves a socket open
                if self._is_child:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(int(code))
        if self._error or code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            raise MutationError((self._error or "cannot collect the tests") + "\n" + output.read_text())

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let properties try few examples, the same for all mutants, and keep none: their failures are of mutants."""
        from hypothesis import Phase, settings  # pytest warns of plugins that are imported before it starts

        # Without a search for the smallest example, which takes minutes.
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile(
            "mutation", settings(), database=None, derandomize=True, max_examples=25, phases=phases
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Fork for each mutant; in a fork, let pytest run the tests that are left in *session*."""
        _import_all(self._sources)  # some are imported in tests alone, where it is too late to replace their code
        gc.unfreeze()  # or the collector does not find functions
        keys = {key for source in self._sources for key in source.functions}
        functions = [each for each in gc.get_objects() if isinstance(each, FunctionType) and _key(each) in keys]
        if self._forked():
            # All functions replaced by equal ones: that must change nothing.
            _replace_code(functions, {key: code for source in self._sources for key, code in source.functions.items()})
            self._recorder = _Recorder({str(source.path) for source in self._sources}, self._report)
            return None
        if _wait_for_one({self._child: time.monotonic() + _FIRST_RUN_SECONDS})[1] != 0:
            self._error = "the tests fail without mutants"
            return True
        calls = _read_calls(self._report)
        running: dict[int, tuple[Mutant, float]] = {}
        waiting = list(reversed(self._mutants))
        while waiting or running:
            while waiting and len(running) < self._jobs:
                mutant = waiting.pop()
                chosen = {
                    test: seen.seconds for test, seen in calls.items() if seen.functions & {*mutant.functions[:1]}
                }
                if not chosen:
                    self.outcomes[mutant] = NOT_REACHED
                    continue
                if self._forked():
                    # The fastest first: most mutants do not live to see the others.
                    found = [item for item in session.items if item.nodeid in chosen]
                    session.items[:] = sorted(found, key=lambda item: chosen[item.nodeid])
                    _limit_work(self._grace + 2 * sum(chosen.values()))
                    _replace_code(functions, mutant.source.code_of(mutant))
                    return None
                running[self._child] = mutant, time.monotonic() + 20 + 5 * sum(chosen.values())
            if running:
                child, code = _wait_for_one({pid: until for pid, (_, until) in running.items()})
                mutant, _ = running.pop(child)
                self.outcomes[mutant] = {None: TIMED_OUT, 0: SURVIVED}.get(code, KILLED)
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        if self._recorder is not None:
            self._recorder.begin(nodeid)

    def pytest_sessionfinish(self) -> None:
        """All tests have run."""
        if self._recorder is not None:
            self._recorder.close()

    def _forked(self) -> bool:
        """Whether this is a new process."""
        self._forks += 1
        sys.stdout.flush()
        sys.stderr.flush()
        self._child = os.fork()
        if self._child:
            return False
        os.setsid()
        _protect_machine()
        folder = self._folder / str(self._forks)
        folder.mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)  # two processes must not share `tmp_path`
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # what a killed process leaves goes with the folder
        self._is_child = True
        return True


class _Recorder:
    """Writes down which functions each test calls."""

    def __init__(self, files: set[str], report: Path) -> None:
        self._files = files
        self._report = report
        self._seen: dict[str, tuple[float, set[CodeKey]]] = {}
        self._current: set[CodeKey] = set()
        self._test = ""
        self._began = 0.0

    def begin(self, test: str) -> None:
        self._end()
        self._test = test
        self._current = set()
        self._began = time.monotonic()
        # Again for each test: some tests set their own.
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def close(self) -> None:
        self._end()
        sys.settrace(None)
        self._report.write_text(json.dumps({test: [secs, sorted(keys)] for test, (secs, keys) in self._seen.items()}))

    def _end(self) -> None:
        if self._test:
            self._seen[self._test] = time.monotonic() - self._began, self._current

    def _on_call(self, frame: Any, *_: object) -> None:
        code = frame.f_code
        if code.co_filename in self._files:
            self._current.add((code.co_filename, code.co_name, code.co_firstlineno))


def judge(
    sources: Sequence[Source], mutants: Sequence[Mutant], tests: Sequence[str], marks: str, jobs: int, grace: int
) -> dict[Mutant, str]:
    """What becomes of each mutant.

    Args:
        sources: The files of all mutants.
        mutants: Those to judge.
        tests: Files and folders.
        marks: Which of their tests run, as for pytest's `-m`.
        jobs: How many processes run at the same time.
        grace: Seconds of processor time that a mutant has beyond twice that of its tests.

    Raises:
        MutationError: If the tests fail without mutants.
    """
    folder = Path(tempfile.mkdtemp(prefix="naiad-mutation-"))
    runner = Runner(sources, mutants, jobs, grace, folder)
    try:
        runner.run(tests, marks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return runner.outcomes


def table(outcomes: Mapping[Mutant, str]) -> str:
    """The outcomes by file, in Markdown, and the mutants that were not killed."""
    rows = ["| file | mutants | killed | survived | not reached by a test |", "|---|---|---|---|---|"]
    names = sorted({mutant.source.name for mutant in outcomes})
    for name in [*names, "all"]:
        counts = Counter(outcome for mutant, outcome in outcomes.items() if name in {mutant.source.name, "all"})
        killed = counts[KILLED] + counts[TIMED_OUT]
        rows.append(f"| {name} | {counts.total()} | {killed} | {counts[SURVIVED]} | {counts[NOT_REACHED]} |")
    left = [f"{outcome}: {each}" for each, outcome in outcomes.items() if outcome in {SURVIVED, NOT_REACHED}]
    return "\n".join([*rows, "", *sorted(left)])


def killed_share(outcomes: Mapping[Mutant, str]) -> float:
    """Which part of the mutants was killed."""
    return sum(outcome in {KILLED, TIMED_OUT} for outcome in outcomes.values()) / len(outcomes) if outcomes else 1


def _protect_machine() -> None:
    """Let this process send no signal to all others: a mutant of a process id that is 0 is 1, whose group is everything."""

    def guarded(send: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def send_to_few(pid: int, number: int) -> None:
            if pid in {-1, 1}:
                raise AssertionError(f"a signal {number} for all processes of the machine")
            send(pid, number)

        return send_to_few

    os.kill, os.killpg = guarded(os.kill), guarded(os.killpg)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under `nohup`, where a mutant that sends it would survive


def _limit_work(seconds: float) -> None:
    """End this process if it takes more than *seconds* of processor time, or fills memory: a loop without end."""
    most = ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA, _MOST_DATA))


def _import_all(sources: Sequence[Source]) -> None:
    """Import the modules of these files under the names that tests import them by."""
    for source in sources:
        roots = [root for root in map(Path, sys.path) if root.is_absolute() and root in source.path.parents]
        if roots:
            relative = source.path.relative_to(max(roots, key=lambda root: len(root.parts))).with_suffix("")
            name = ".".join(relative.parts).removesuffix(".__init__")
            with suppress(ImportError):  # an optional dependency is missing
                importlib.import_module(name)


def _key(function: FunctionType) -> CodeKey:
    code = function.__code__
    return code.co_filename, code.co_name, code.co_firstlineno


def _replace_code(functions: Sequence[FunctionType], codes: Mapping[CodeKey, CodeType]) -> None:
    for function in functions:
        code = codes.get(_key(function))
        if code is not None:
            function.__code__ = code


def _read_calls(report: Path) -> dict[str, Calls]:
    """The calls of each test. What a test calls as it is set up counts for all tests of its file: fixtures are shared."""
    found = json.loads(report.read_text())
    return {test: Calls(seconds, frozenset(tuple(key) for key in keys)) for test, (seconds, keys) in found.items()}


def _wait_for_one(running: Mapping[int, float]) -> tuple[int, int | None]:
    """Wait until one of these processes has exited, or kill one whose time is over: its id, and its exit code or None."""
    descriptors = {os.pidfd_open(pid): pid for pid in running}
    try:
        first = min(running, key=lambda pid: running[pid])
        ready, _, _ = select.select(descriptors, [], [], max(0, running[first] - time.monotonic()))
        pid = descriptors[ready[0]] if ready else first
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if ready:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its group has a name for as long as it is not reaped
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return pid, os.waitstatus_to_exitcode(status) if ready else None


@contextmanager
def _output_in(path: Path) -> Iterator[Path]:
    """Let everything that this process prints go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield path
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        os.close(saved[0])
        os.close(saved[1])
