"""Processes that are killed under load while they run instances of the model."""

from __future__ import annotations

import os

import pytest
from serving.frontends.killing import kill_under_load
from serving.repositories import repository
from support.server import ServerProcess

COUNT = 3


@pytest.mark.endurance
def test_processes_killed_under_load_lose_connections_and_their_own_requests_only(tmp_path):
    """`NAIAD_KILL_SECONDS=300 pytest -k killed_under_load --timeout=400` runs it for five minutes."""
    seconds = float(os.environ.get("NAIAD_KILL_SECONDS", "4"))
    models = repository(tmp_path / "models", ["identity"], identity="instance_group [{ count: 4 kind: KIND_CPU }]")
    with ServerProcess(models, f"--processes={COUNT}", work=tmp_path) as server:
        outcomes, kills = kill_under_load(server, seconds, COUNT)
        assert kills > 0
        assert outcomes["answered"] > 0
        moved = {outcome for outcome in outcomes if "of the server, which had it, has exited; send it again" in outcome}
        assert outcomes.keys() - moved <= {"answered", "closed"}
        server.wait_health("ready")
        print(f"{kills} kills: {dict(outcomes)}")
