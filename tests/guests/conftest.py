"""Lets coroutines of tests run on the loop that the server uses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from .guests import run


@pytest.fixture
def run_coroutine() -> Callable[[Coroutine[Any, Any, Any]], object]:
    return run
