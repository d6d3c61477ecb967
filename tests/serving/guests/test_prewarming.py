"""Servers that do the imports of a model's instances once, and fork these."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import venv
from pathlib import Path

import psutil
import pytest
from serving.repositories import index, infer, is_model_ready, repository, values
from support.server import ServerError, ServerProcess
from support.waiting import until

from .test_supervision import is_running, named_segments

PREWARM = 'parameters {{ key: "PREWARM" value {{ string_value: "{}" }} }}\n'
THREE = "instance_group { count: 3 kind: KIND_CPU }\n"


def guests(server: ServerProcess) -> dict[str, psutil.Process]:
    """The guests by instance, as the log names them last."""
    found = dict(re.findall(r"'(\w+)' is ready: pid (\d+)", server.log))
    return {name: psutil.Process(int(pid)) for name, pid in found.items()}


def fork_servers(server: ServerProcess) -> set[int]:
    """The processes that guests were forked from."""
    return {guest.ppid() for guest in guests(server).values()} - {server.pid}


def environment(folder: Path) -> Path:
    """A venv of this Python that sees the packages of this one, numpy among them."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("platlib"))
    return folder


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


def test_a_forked_guest_that_exits_is_reported_and_replaced_as_any_other(tmp_path):
    repo = repository(tmp_path / "models", ["dies_mid_request"], dies_mid_request=PREWARM.format("true"))
    with ServerProcess(repo, work=tmp_path) as server:
        before = guests(server)["dies_mid_request_0"]
        (parent,) = fork_servers(server)
        reply = infer(server, "dies_mid_request", -int(signal.SIGKILL))
        assert reply.error.startswith(
            f"Stub process 'dies_mid_request_0' is not healthy. Reason: pid {before.pid} was killed by SIGKILL (out of memory?). "
            "Its last lines on stderr:\n"
        )
        assert "about to die of signal 9" in reply.error
        assert values(infer(server, "dies_mid_request", 0)) == [0]
        server.wait_for(lambda: server.log.count("'dies_mid_request_0' is ready: pid ") == 2, "the line in the log")
        after = guests(server)["dies_mid_request_0"]
        assert (after.pid != before.pid, after.ppid()) == (True, parent)


def test_guests_whose_fork_server_is_killed_are_replaced_by_those_of_another(tmp_path):
    repo = repository(tmp_path / "models", ["identity"], identity=PREWARM.format("true"))
    with ServerProcess(repo, work=tmp_path) as server:
        (parent,) = fork_servers(server)
        os.kill(parent, signal.SIGKILL)
        server.wait_log("the process it was forked from is gone: the fork server ended")
        server.wait_for(lambda: is_model_ready(server, "identity"), "another guest")
        assert values(infer(server, "identity", 4)) == [4]
        assert fork_servers(server).isdisjoint({parent})
        assert len(fork_servers(server)) == 1


def test_a_fork_server_goes_with_the_last_model_that_needs_it(tmp_path):
    names = ["identity", "raises_in_execute"]
    repo = repository(tmp_path / "models", names)
    options = ("--prewarm=true", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(repo, *options, work=tmp_path) as server:
        (parent,) = fork_servers(server)
        assert {guest.ppid() for guest in guests(server).values()} == {parent}
        server.post("/v2/repository/models/identity/unload")
        server.wait_for(lambda: index(server)["identity"]["state"] == "UNAVAILABLE", "the first to go")
        assert is_running(parent)
        server.post("/v2/repository/models/raises_in_execute/unload")
        server.wait_for(lambda: not is_running(parent), "the fork server to go")
        server.wait_for(lambda: server.children() == [], "no process to be left")


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


def test_two_environments_have_a_fork_server_each(tmp_path):
    parameter = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'
    one, other = (parameter.format(environment(tmp_path / name)) for name in ("one", "other"))
    config = {"identity": one, "raises_in_execute": one, "dies_mid_request": other}
    repo = repository(tmp_path / "models", config, **config)
    with ServerProcess(repo, "--prewarm=true", work=tmp_path) as server:
        parents = {name: guest.ppid() for name, guest in guests(server).items()}
        assert parents["identity_0"] == parents["raises_in_execute_0"] != parents["dies_mid_request_0"]
        assert server.pid not in parents.values()
        assert values(infer(server, "identity", 1)) == [1]
        assert values(infer(server, "dies_mid_request", 0)) == [0]


def test_a_model_may_override_the_flag(tmp_path):
    names = ["identity", "dies_mid_request", "raises_in_execute"]
    repo = repository(tmp_path / "models", names, identity=PREWARM.format("false"))
    with ServerProcess(repo, "--prewarm=true", work=tmp_path) as server:
        own = {each.pid for each in server.serving()}
        forked = {name for name, guest in guests(server).items() if guest.ppid() not in own}
        assert forked == {"dies_mid_request_0", "raises_in_execute_0"}


def test_a_model_that_completes_its_configuration_does_so_in_a_forked_guest(tmp_path):
    repo = repository(tmp_path / "models", ["auto_completes"])
    with ServerProcess(repo, "--prewarm=true", work=tmp_path) as server:
        assert server.log.count("prewarmed numpy in ") == 1
        assert is_model_ready(server, "auto_completes")


def test_a_model_that_cannot_be_prewarmed_is_served_without(tmp_path):
    repo = repository(tmp_path / "models", ["identity"], identity=PREWARM.format("numpy,no_such_module"))
    with ServerProcess(repo, work=tmp_path) as server:
        assert (
            "'identity_0' is started without the prewarmed numpy, no_such_module: no_such_module cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_module'"
        ) in server.log
        assert fork_servers(server) == set()
        assert values(infer(server, "identity", 2)) == [2]


def test_a_model_that_names_no_modules_is_refused(tmp_path):
    repo = repository(tmp_path / "models", ["identity"], identity=PREWARM.format("numpy; torch"))
    server = ServerProcess(repo, work=tmp_path)
    with pytest.raises(ServerError, match="ended with code 1"), server:
        pass
    assert (
        "parameter PREWARM of model 'identity' is 'numpy; torch', in which 'numpy; torch' is not a module's name"
        in server.log
    )


def test_a_failed_load_leaves_no_fork_server(tmp_path):
    repo = repository(tmp_path / "models", ["raises_in_initialize"])
    options = ("--prewarm=true", "--model-control-mode=explicit")
    with ServerProcess(repo, *options, work=tmp_path) as server:
        assert server.post("/v2/repository/models/raises_in_initialize/load").status == 400
        assert "prewarmed numpy in " in server.log
        server.wait_for(lambda: not any(map(is_running, [each.pid for each in server.children()])), "no process")
