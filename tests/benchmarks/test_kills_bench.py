"""`bench.kills`: processes of a server and guests are killed under every kind of request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from bench import kills

ROOT = Path(__file__).parents[2]


def outcome_of(error: Exception | None) -> kills.Outcomes:
    outcomes = kills.Outcomes()

    async def request() -> None:
        if error is not None:
            raise error

    asyncio.run(outcomes.count("kind", request))
    return outcomes


@pytest.mark.parametrize(
    ("error", "outcome", "is_wrong"),
    [
        (None, "answered", False),
        (ConnectionResetError(104, "Connection reset by peer"), "failed", False),
        (RuntimeError("cannot finish the request: process 1 of the server, which had it, has exited"), "failed", False),
        (RuntimeError("unexpected shape for input 'IN'"), "failed", True),
        (kills.WrongError("'plain' answered [1] in place of [2]"), "wrong", True),
        (asyncio.TimeoutError(), "lost", True),
    ],
)
def test_a_request_may_fail_with_what_had_it_and_is_wrong_otherwise(error, outcome, is_wrong):
    outcomes = outcome_of(error)
    assert dict(outcomes.counts) == {("kind", outcome): 1}
    assert bool(outcomes.wrong) is is_wrong


@pytest.mark.endurance
def test_no_request_is_lost_or_mixed_up_while_processes_are_killed():
    """`python -m bench.kills` does that for five minutes."""
    command = [sys.executable, "-m", "bench.kills", "--seconds=8", "--clients=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| sequences, gRPC |" in done.stdout
