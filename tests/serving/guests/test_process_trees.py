"""A guest's whole process tree ends with it, also processes that left its session, and whatever ended the guest."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from serving.guests.test_supervision import is_running, models
from serving.repositories import infer, is_model_ready, values
from support.server import ServerProcess
from support.waiting import until

from naiad.guests import cgroups

DAEMONS = 4


GROUPS, MARKERS = "groups", "markers"


def environ(tmp_path: Path, means: str) -> dict[str, str]:
    """Variables of a server that uses control groups, or markers alone as on a system that permits no groups."""
    if means == GROUPS:
        if not cgroups.find_hierarchies():
            pytest.skip("this system lets us make no control groups")
        return {}
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'tritonserver' in sys.argv[0]:\n"
        "    from naiad.guests import cgroups\n"
        "    cgroups.find_hierarchies = lambda: ()\n"
    )
    return {"PYTHONPATH": str(tmp_path)}


def daemons(server: ServerProcess, count: int = DAEMONS) -> list[int]:
    """The process ids of the daemons of the last guest."""
    found: list[str] = server.wait_for(
        lambda: len(pids := re.findall(r"\] child (\d+)", server.log)) >= count and pids, "the daemons"
    )
    return [int(pid) for pid in found][-DAEMONS:]


def none_runs(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


@pytest.mark.parametrize(("means", "prewarm"), [(GROUPS, "false"), (MARKERS, "false"), (MARKERS, "true")])
def test_daemons_end_with_a_guest_that_crashes(tmp_path, means, prewarm):
    """They went on for ever, and held what they had: memory, ports, a GPU."""
    repo, variables = models(tmp_path, "leaves_daemons"), environ(tmp_path, means)
    with ServerProcess(repo, f"--prewarm={prewarm}", work=tmp_path, environ=variables) as server:
        left = daemons(server)
        assert all(map(is_running, left))
        assert bool(groups_of(server.pid)) is (means == GROUPS)
        assert "exited with status 3" in infer(server, "leaves_daemons", -1).error
        server.wait_for(lambda: none_runs(left), "the daemons to end")
        server.wait_for(lambda: is_model_ready(server, "leaves_daemons"), "the next guest")
        assert all(map(is_running, daemons(server, 2 * DAEMONS)))
        assert values(infer(server, "leaves_daemons", 1)) == [1]


@pytest.mark.parametrize(("means", "prewarm"), [(GROUPS, "true"), (MARKERS, "false"), (MARKERS, "true")])
def test_daemons_end_with_a_server_that_is_killed(tmp_path, means, prewarm):
    """Not even children in the guest's own process group ended."""
    repo = models(tmp_path, "leaves_daemons", "spawns_children")
    server = ServerProcess(repo, f"--prewarm={prewarm}", work=tmp_path, environ=environ(tmp_path, means))
    server.start()
    try:
        server.wait_health("ready")
        left = [*daemons(server), *(child.pid for child in psutil.Process(server.pid).children(recursive=True))]
        assert len(left) >= 2 * DAEMONS
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: none_runs(left), "all processes to end")
    finally:
        server.kill()
    until(lambda: not groups_of(server.pid), "no control group to be left")


@pytest.mark.parametrize("means", [GROUPS, MARKERS])
def test_nothing_is_left_of_a_server_that_stops(tmp_path, means):
    with ServerProcess(models(tmp_path, "leaves_daemons"), work=tmp_path, environ=environ(tmp_path, means)) as server:
        left = daemons(server)
        server.stop()
        assert none_runs(left)
        assert not groups_of(server.pid)


def groups_of(pid: int) -> list[Path]:
    return [path for each in cgroups.find_hierarchies() for path in each.group.glob(f"naiad-guest-{pid}-*")]
