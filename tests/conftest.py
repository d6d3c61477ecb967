"""Settings of all tests: Hypothesis, the garbage collector, shared guests, markers of servers, the order of files."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.once import once
from support.selection import deselect_other_shares, is_sampled, is_slow, put_longest_first, starts_quick_server
from support.server import ServerProcess, shared_guests

from naiad.environments.store.placement import spread

_LAST_START = "NAIAD_TEST_LAST_START"  # a variable that workers inherit

# Hundreds of processes import numpy, whose OpenBLAS starts a thread for each core: time that no test is about.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so all processes that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run in parallel, on machines that may be busy: the duration of an example says nothing.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("patient"), max_examples=25)  # `make quick`
settings.load_profile("patient")

# Environments, archives and stores that several folders of tests use.
pytest_plugins = ["support.environment_fixtures"]


@pytest.fixture(scope="session", autouse=True)
def _folders_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spread the folders of tests over the disk, so that removing one does not slow down the others."""
    base = tmp_path_factory.getbasetemp()
    for folder in (base, base.parent):
        spread(folder)


@pytest.fixture(scope="session", autouse=True)
def _guests_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all servers of the run share the guest's files and their bytecode."""
    shared_guests.append(once(tmp_path_factory, "guests", Path.mkdir))


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undo what a command that ran in this process has set of the log: a later test reads its records."""
    before = _log_levels()
    yield
    after = _log_levels()
    if after != before:
        for name in after | before:
            logging.getLogger(name).setLevel(before.get(name, logging.NOTSET))


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
    """Mark the tests that start a server process as `server`: those whose module or fixtures know `ServerProcess`."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("smoke") is not None:
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
    """Add `--share`, `--slow-share`, `--server-share` and `--within`."""
    what = "run only the Kth of N shares of the files that have tests to run"
    parser.addoption("--share", metavar="K/N", help=what)
    parser.addoption("--slow-share", metavar="K/N", help="the same for tests marked as slow alone; all others run")
    parser.addoption("--server-share", metavar="K/N", help="the same for tests that start servers and are not slow")
    what = "run tests that are slow or start servers last, and skip those that would begin after so many seconds"
    parser.addoption("--within", metavar="SECONDS", type=float, help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Note when the last test that is slow or starts a server may begin, for all processes that run tests."""
    within = config.getoption("within")
    if within is not None:
        os.environ.setdefault(_LAST_START, str(time.time() + within))


@pytest.hookimpl(tryfirst=True)  # before fixtures start servers
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late: CI has a quarter of an hour on any machine."""
    if _LAST_START in os.environ and is_sampled(item) and time.time() > float(os.environ[_LAST_START]):
        pytest.skip("the time for tests that are slow or start servers is over")


@pytest.hookimpl(trylast=True)  # shares are of the tests that `-m` and `-k` leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the files of other shares; put the files that take longest first."""
    share = config.getoption("share")
    if share is not None:
        config.hook.pytest_deselected(items=deselect_other_shares(items, share))
    slow_share = config.getoption("slow_share")
    if slow_share is not None:
        config.hook.pytest_deselected(items=deselect_other_shares(items, slow_share, is_slow))
    server_share = config.getoption("server_share")
    if server_share is not None:
        config.hook.pytest_deselected(items=deselect_other_shares(items, server_share, starts_quick_server))
    if hasattr(config, "workerinput"):
        put_longest_first(items, sampled_last=config.getoption("within") is not None)
