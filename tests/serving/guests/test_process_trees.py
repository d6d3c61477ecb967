"""A guest's whole process tree ends with it, also processes that left its session, and whatever ended the guest."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest
from guests.guests import is_running
from serving.guests.test_supervision import models
from serving.repositories import infer, is_model_ready, values
from support.server import ServerProcess
from support.waiting import until

DAEMONS = 4


def daemons(server: ServerProcess, count: int = DAEMONS) -> list[int]:
    """The process ids of the daemons of the last guest."""
    found: list[str] = server.wait_for(
        lambda: len(pids := re.findall(r"\] child (\d+)", server.log)) >= count and pids, "the daemons"
    )
    return [int(pid) for pid in found][-DAEMONS:]


def none_runs(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


@pytest.mark.parametrize("prewarm", ["false", "true"])
def test_daemons_end_with_a_guest_that_crashes(tmp_path, prewarm):
    """They went on for ever, and held what they had: memory, ports, a GPU."""
    with ServerProcess(models(tmp_path, "leaves_daemons"), f"--prewarm={prewarm}", work=tmp_path) as server:
        left = daemons(server)
        assert all(map(is_running, left))
        assert "exited with status 3" in infer(server, "leaves_daemons", -1).error
        server.wait_for(lambda: none_runs(left), "the daemons to end")
        server.wait_for(lambda: is_model_ready(server, "leaves_daemons"), "the next guest")
        assert all(map(is_running, daemons(server, 2 * DAEMONS)))
        assert values(infer(server, "leaves_daemons", 1)) == [1]


@pytest.mark.parametrize("prewarm", ["false", "true"])
def test_daemons_end_with_a_server_that_is_killed(tmp_path, prewarm):
    """Not even children in the guest's own process group ended."""
    repo = models(tmp_path, "leaves_daemons", "spawns_children")
    server = ServerProcess(repo, f"--prewarm={prewarm}", work=tmp_path)
    server.start()
    try:
        server.wait_health("ready")
        left = [*daemons(server), *(child.pid for child in psutil.Process(server.pid).children(recursive=True))]
        assert len(left) >= 2 * DAEMONS
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: none_runs(left), "all processes to end")
    finally:
        server.kill()


def test_nothing_is_left_of_a_server_that_stops(tmp_path):
    with ServerProcess(models(tmp_path, "leaves_daemons"), work=tmp_path) as server:
        left = daemons(server)
        server.stop()
        until(lambda: none_runs(left), "all processes to end")
