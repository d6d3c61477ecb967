"""What a model's `is_ready` returns or raises, as the host gets it. The thread around it: `queries_check`."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from naiad_stub.readiness import ReadinessThread


@pytest.fixture
def ask(monkeypatch):
    """Asks a model whose `is_ready` is a function."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    sock: Any = SimpleNamespace(settimeout=lambda _: None, close=lambda: None)
    return lambda is_ready: ReadinessThread(sock, is_ready, lambda: None)._ask()


async def ready_later() -> bool:
    return True


def fails() -> bool:
    raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("is_ready", "expected"),
    [
        (lambda: True, (True, "")),
        (lambda: False, (False, "")),
        (ready_later, (True, "")),
        (lambda: 1, (False, "is_ready() must return a boolean value")),
    ],
)
def test_a_model_is_ready_if_it_says_so(ask, is_ready, expected):
    assert ask(is_ready) == expected


def test_a_model_whose_answer_fails_is_not_ready(ask):
    is_ready, problem = ask(fails)
    assert is_ready is False
    assert problem.startswith("RuntimeError: not now")
