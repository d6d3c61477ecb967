"""Lets coroutines of tests run on a loop whose time is the test's clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fakes.clock import Clock


@pytest.fixture
def run_coroutine(clock: Clock) -> Callable[[Coroutine[Any, Any, Any]], object]:
    return clock.run
