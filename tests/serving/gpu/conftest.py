"""Servers whose guests find the stand-in for NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cuda import StandInDriver


@pytest.fixture
def driver(tmp_path) -> Iterator[StandInDriver]:
    """A driver with one device; nothing may be left in it when the test has ended its server."""
    made = StandInDriver(tmp_path / "cuda")
    yield made
    assert (made.allocations(), made.opened(), made.pinned(), made.contexts()) == ([], [], [], [])


@pytest.fixture(scope="module")
def shared_driver(work) -> Iterator[StandInDriver]:
    """The same for all tests of a module."""
    made = StandInDriver(work / "driver")
    yield made
    assert (made.allocations(), made.opened(), made.pinned(), made.contexts()) == ([], [], [], [])
