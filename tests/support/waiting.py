"""Waiting for a condition, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, timeout: float = 60) -> None:
    """Look every now and then until *condition* holds; fail naming *what* was waited for."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain for {what}"
        time.sleep(0.02)
