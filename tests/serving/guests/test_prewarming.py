"""Servers that do the imports of a model's instances once, and fork these."""

from __future__ import annotations

import os
import re
import signal

import psutil
from guests.guests import is_running
from serving.repositories import infer, repository, values
from support.server import ServerProcess
from support.waiting import until

from .test_supervision import named_segments

PREWARM = 'parameters {{ key: "PREWARM" value {{ string_value: "{}" }} }}\n'
THREE = "instance_group { count: 3 kind: KIND_CPU }\n"


def guests(server: ServerProcess) -> dict[str, psutil.Process]:
    """The guests by instance, as the log names them last."""
    found = dict(re.findall(r"'(\w+)' is ready: pid (\d+)", server.log))
    return {name: psutil.Process(int(pid)) for name, pid in found.items()}


def fork_servers(server: ServerProcess) -> set[int]:
    """The processes that guests were forked from."""
    return {guest.ppid() for guest in guests(server).values()} - {server.pid}


def test_instances_of_a_prewarmed_model_come_from_one_process_and_serve(tmp_path):
    repo = repository(tmp_path / "models", ["identity"], identity=PREWARM.format("numpy, asyncio") + THREE)
    with ServerProcess(repo, work=tmp_path) as server:
        assert "prewarmed numpy, asyncio in " in server.log
        assert len(guests(server)) == 3
        (parent,) = fork_servers(server)
        assert psutil.Process(parent).ppid() == server.pid
        assert {guest.ppid() for guest in guests(server).values()} == {parent}
        for number in range(6):
            assert values(infer(server, "identity", number)) == [number]


def test_a_killed_server_takes_fork_servers_and_their_guests_along(tmp_path):
    before = named_segments()
    repo = repository(tmp_path / "models", ["identity", "dies_mid_request"], identity=THREE)
    server = ServerProcess(repo, "--prewarm=true", work=tmp_path)
    server.start()
    try:
        server.wait_health("ready")
        family = [child.pid for child in server.children()]
        assert len(family) == 3 + 1 + len(fork_servers(server))
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not any(map(is_running, family)), "all of them to end")
    finally:
        server.kill()
    until(lambda: named_segments() <= before, "no segment to be left")
