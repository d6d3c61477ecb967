"""Settings of all tests: Hypothesis, the garbage collector, shared guests, markers of servers, the order of files."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.serving import LoopThread
from hypothesis import HealthCheck, settings
from support.once import once
from support.selection import is_endurance, put_longest_first, rotate
from support.server import ServerProcess, shared_guests
from support.system_packages import summary

from naiad.environments.store.placement import spread

_LAST_START = "NAIAD_TEST_LAST_START"  # a variable that workers inherit

# Hundreds of processes import numpy, whose OpenBLAS starts a thread for each core: time that no test is about.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so all processes that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run in parallel, on machines that may be busy: the duration of an example says nothing. The same examples are tried
# each time, so that a change is judged by what it changes; `make endurance` looks for new ones.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", parent=settings.get_profile("patient"), derandomize=True, max_examples=40)
settings.register_profile("new", parent=settings.get_profile("patient"), max_examples=200)
settings.load_profile("same")

# Environments, archives and stores that several folders of tests use.
pytest_plugins = ["support.environment_fixtures"]


@pytest.fixture(scope="session", autouse=True)
def _folders_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spread the folders of tests over the disk, so that removing one does not slow down the others."""
    base = tmp_path_factory.getbasetemp()
    for folder in (base, base.parent):
        spread(folder)


@pytest.fixture(scope="session", autouse=True)
def _nested_runs_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have runs that tests start keep their folders by themselves: pytest fails where two clean up at the same time."""
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tmp_path_factory.mktemp("nested"))


@pytest.fixture(scope="session", autouse=True)
def _guests_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all servers of the run share the guest's files and their bytecode."""
    shared_guests.append(once(tmp_path_factory, "guests", Path.mkdir))


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    """A loop for servers in this process. One for all tests: grpcio keeps watching every loop it has ever seen."""
    with LoopThread() as thread:
        yield thread


@pytest.fixture(scope="module")
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the tests of a module share: for its server, and the models of that."""
    return tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undo what a command that ran in this process has set of the log: a later test reads its records."""
    before = _log_levels()
    yield
    after = _log_levels()
    if after != before:
        for name in after | before:
            logging.getLogger(name).setLevel(before.get(name, logging.NOTSET))


@pytest.fixture
def run_coroutine() -> Callable[[Coroutine[Any, Any, Any]], object]:
    """Runs a test that is a coroutine function; folders and files have their own, with a clock or a time limit."""
    return asyncio.run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function by the fixture for it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["run_coroutine"](pyfuncitem.obj(**arguments))
    return True


def _log_levels() -> dict[str, int]:
    """The levels of the loggers that have one."""
    known = logging.Logger.manager.loggerDict
    loggers = {name: each for name, each in known.items() if name == "naiad" or name.startswith("naiad.")}
    return {name: each.level for name, each in loggers.items() if isinstance(each, logging.Logger) and each.level}


def pytest_collection() -> None:
    """Collect tests without the garbage collector, which would traverse a heap that only grows, again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection.

    Six thousand tests are a heap of a million objects, and each `gc.collect()` of a test walked all of them: half a second.
    """
    gc.collect()
    gc.freeze()
    # The default of 700 new objects is for programs with little memory: parsing our sources took four times as long.
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by markers
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that start a server process, or a browser, as `server`, and have coroutines run by a fixture.

    Those of servers are those whose module or fixtures know `ServerProcess`, and those with the fixture `browser`.
    """
    if not isinstance(item, pytest.Function):
        return
    if inspect.iscoroutinefunction(item.obj):
        item.fixturenames.append("run_coroutine")
    if "browser" in item.fixturenames:
        item.add_marker(pytest.mark.server)
        return
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    used = [vars(item.module), *(fixture.func.__globals__ for named in fixtures for fixture in named)]
    used = [namespace for namespace in used if namespace is not globals()]
    if any(_knows_servers(namespace) for namespace in used):
        item.add_marker(pytest.mark.server)


_known: dict[int, bool] = {}


def _knows_servers(namespace: Mapping[str, object]) -> bool:
    key = id(namespace)
    if key not in _known:
        _known[key] = any(
            value is ServerProcess or getattr(value, "__globals__", {}).get("ServerProcess") is ServerProcess
            for value in namespace.values()
        )
    return _known[key]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--within` and `--turn`."""
    what = "skip tests of the endurance tier that would begin after so many seconds"
    parser.addoption("--within", metavar="SECONDS", type=float, help=what)
    what = "begin at the file whose turn it is: a number that each run increments"
    parser.addoption("--turn", metavar="N", type=int, help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Note when the last test of the endurance tier may begin, for all processes that run tests."""
    within = config.getoption("within")
    if within is not None:
        os.environ.setdefault(_LAST_START, str(time.time() + within))


@pytest.hookimpl(tryfirst=True)  # before fixtures start servers
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late: CI ends within an hour."""
    if _LAST_START in os.environ and is_endurance(item) and time.time() > float(os.environ[_LAST_START]):
        pytest.skip("the time for endurance tests is over")


@pytest.hookimpl(trylast=True)  # the order is of the tests that `-m` and `-k` leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take longest first, or those whose turn it is."""
    turn = config.getoption("turn")
    if turn is not None:
        rotate(items, turn)
    elif hasattr(config, "workerinput"):
        put_longest_first(items)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the programs that this machine lacks, with the number of tests skipped for want of each."""
    skipped = terminalreporter.stats.get("skipped", [])
    if line := summary(str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)
