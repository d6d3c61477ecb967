"""Rules for all tests: Hypothesis's patience, the garbage collector, which tests start servers, which files run first."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, settings
from naiad.environments.store.placement import spread
from support.server import ServerProcess

# Files of tests run side by side, on machines that may have other work, too: how long an example takes says nothing.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Environments, archives and stores that several folders of tests use.
pytest_plugins = ["support.environment_fixtures"]


@pytest.fixture(scope="session", autouse=True)
def _folders_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests make and remove trees of files all the time: each where the others' removals do not slow it down."""
    base = tmp_path_factory.getbasetemp()
    for folder in (base, base.parent):
        spread(folder)


def pytest_collection() -> None:
    """Collect tests without the garbage collector: it would walk a heap that only grows, over and over."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Take what the collection of tests left out of the garbage collector's sight.

    Six thousand tests are a heap of a million objects, and each `gc.collect()` of a test walked all of them: half a second.
    """
    gc.collect()
    gc.freeze()
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side, begin with the files that take longest, or one of them runs on alone at the end.

    What takes long says so: by asking for more time, or by tests marked as slow. Xdist itself begins with the files
    of most tests, and the longest of all have one or two (so `make test` tells it not to).
    """
    if not hasattr(config, "workerinput"):
        return
    limits: dict[str, float] = {}
    slow: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for item in items:
        file = item.nodeid.partition("::")[0]
        marker = item.get_closest_marker("timeout")
        limits[file] = max(limits.get(file, 0), marker.args[0] if marker is not None and marker.args else 0)
        slow[file] += item.get_closest_marker("slow") is not None
        tests[file] += 1

    def weight(item: pytest.Item) -> tuple[float, int, int]:
        file = item.nodeid.partition("::")[0]
        return limits[file], slow[file], tests[file]

    items.sort(key=weight, reverse=True)  # stable: tests of a file stay together, in the order they have
