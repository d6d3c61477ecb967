"""Guests and servers that die: who is told what, who goes on, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import indent

import pytest
from serving.processes.reaching import connection_of_each
from serving.repositories import document, index, infer, is_model_ready, repository, values
from serving.written import RUNS_CODE, evaluate, send_code, write_model
from support.server import ServerProcess, still_running
from support.threads import in_thread
from support.waiting import until

GATED = """
def initialize(self, args):
    while os.path.exists({!r}):
        time.sleep(0.01)
"""
"""A guest that is not ready before a file is gone: so a test has all the time between a death and the next guest."""

FINALIZES = """
def finalize(self):
    time.sleep(1)
    print("finalized", flush=True)
"""


def models(folder: Path, *names: str, **config: str) -> Path:
    return repository(folder / "models", names, **config)


def guest_pid(server: ServerProcess, model: str) -> int:
    """The process id of the model's guest, as the log names it last."""
    server.wait_log(f"'{model}_0' is ready: pid ")
    return int(re.findall(rf"'{model}_0' is ready: pid (\d+)", server.log)[-1])


def test_killed_guest_fails_exactly_its_request_and_comes_back(tmp_path):
    repo, gate = models(tmp_path, "dies_mid_request", "identity"), tmp_path / "gate"
    with (repo / "dies_mid_request" / "1" / "model.py").open("a") as file:
        file.write(indent(GATED.format(str(gate)), "    "))
    with ServerProcess(repo, work=tmp_path) as server:
        pid = guest_pid(server, "dies_mid_request")
        assert values(infer(server, "dies_mid_request", 0)) == [0]
        gate.touch()
        reply = infer(server, "dies_mid_request", -int(signal.SIGKILL))
        assert reply.status == 500
        assert reply.error.startswith(
            f"Stub process 'dies_mid_request_0' is not healthy. Reason: pid {pid} was killed by SIGKILL (out of memory?). "
            "Its last lines on stderr:\n"
        )
        assert "about to die of signal 9" in reply.error
        assert not is_model_ready(server, "dies_mid_request")
        assert server.get("/v2/health/ready").status == 400
        assert values(infer(server, "identity", 4)) == [4]
        gate.unlink()
        # Waits for the new guest, and is answered by it.
        assert values(infer(server, "dies_mid_request", 0)) == [0]
        assert is_model_ready(server, "dies_mid_request")
        assert server.get("/v2/health/ready").status == 200
        assert guest_pid(server, "dies_mid_request") != pid


def test_a_crash_in_c_reports_the_signal_the_models_last_lines_and_pythons_stack(tmp_path):
    write_model(tmp_path / "models", "falls")
    code = "import ctypes, sys; print('about to fall', file=sys.stderr, flush=True); ctypes.string_at(8)"
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        error = send_code(server, "falls", code).error
        server.wait_log("Fatal Python error: Segmentation fault")
    first, *lines = error.splitlines()
    assert re.fullmatch(
        r".*Stub process 'falls_0' is not healthy. Reason: pid \d+ was killed by SIGSEGV\. Its last lines on stderr:",
        first,
    )
    assert lines[:2] == ["about to fall", "Fatal Python error: Segmentation fault"]
    assert any(re.search(r"File \".*model\.py\", line \d+ in execute", line) for line in lines)
    assert len(lines) <= 20


def test_crash_loop_ends_in_a_model_that_is_unavailable_and_says_why(tmp_path):
    repo = models(tmp_path, "dies_mid_request", "identity")
    with ServerProcess(repo, "--stub-restart-limit=2", work=tmp_path) as server:
        for number in range(3):
            assert "was killed by SIGABRT" in infer(server, "dies_mid_request", -int(signal.SIGABRT), number).error
        server.wait_for(lambda: index(server)["dies_mid_request"]["state"] == "UNAVAILABLE", "the model to be given up")
        reason = index(server)["dies_mid_request"]["reason"]
        assert reason.endswith(
            "was killed by SIGABRT. It died 3 times within 60 s, more than --stub-restart-limit=2 allows; it is tried "
            "again in 30 s; load the model again to retry at once"
        )
        reply = infer(server, "dies_mid_request", 0)
        assert reply.status == 503
        assert "--stub-restart-limit=2" in reply.error
        assert not is_model_ready(server, "dies_mid_request")
        assert values(infer(server, "identity", 1)) == [1]


def test_killed_server_takes_its_guests_along_and_leaves_nothing(tmp_path):
    before = named_segments()
    server = ServerProcess(models(tmp_path, "dies_mid_request", "identity"), work=tmp_path)
    server.start()
    try:
        server.wait_health("ready")
        guests = server.children()
        assert len(guests) == 2
        in_thread(infer, server, "dies_mid_request", 30)
        server.wait_log("works for 30.0 s")
        os.kill(server.pid, signal.SIGKILL)
        assert still_running(guests, 60) == []
    finally:
        server.kill()
    until(lambda: named_segments() <= before, "no segment to be left")


def named_segments() -> set[Path]:
    """What lies in /dev/shm, without the regions of clients in tests that run at the same time.

    What else runs on the machine has its own there, which come and go: only what stays was left behind.
    """
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("naiad_test_")}


def test_a_server_that_is_stopped_finishes_the_request_in_flight(tmp_path):
    with ServerProcess(models(tmp_path, "dies_mid_request"), work=tmp_path) as server:
        asking = in_thread(infer, server, "dies_mid_request", 1)
        server.wait_log("works for 1.0 s")
        assert server.stop() == 0
        assert values(asking.result(60)) == [1]


def test_server_ends_when_a_guest_does_not(tmp_path):
    """A model that hangs in execute must not keep the server: after the exit timeout it is killed."""
    repo = models(tmp_path, "dies_mid_request")
    with ServerProcess(repo, "--exit-timeout-secs=1", work=tmp_path) as server:
        in_thread(infer, server, "dies_mid_request", 300)
        server.wait_log("works for 300.0 s")
        assert server.stop() == 0


@pytest.mark.parametrize(("processes", "of_coordinator"), [(1, True), (2, True), (2, False)])
def test_a_request_that_hangs_uses_up_the_exit_timeout_once(tmp_path, processes, of_coordinator):
    """The server disconnects its client after that timeout; the guest then gets 5 s, not the timeout again."""
    repo = models(tmp_path, "dies_mid_request")
    write_model(repo, "finalizes", FINALIZES + RUNS_CODE)
    options = [f"--processes={processes}"] if processes > 1 else []
    with ServerProcess(repo, "--exit-timeout-secs=7", *options, work=tmp_path) as server:
        with connection_of_each(server) as connections:
            # The process that the client is connected to may be another one than that which executes its request.
            (connection,) = (each for pid, each in connections.items() if (pid == server.pid) is of_coordinator)
            connection.request("POST", "/v2/models/dies_mid_request/infer", json.dumps(document(300)))
            server.wait_log("works for 300.0 s")
            assert server.stop() == 0
        assert re.search(r"still executes requests that were cancelled and is killed after (5|4\.9\d*) s", server.log)
        assert "finalized" in server.log


def test_children_of_a_model_end_with_the_server(tmp_path):
    with ServerProcess(models(tmp_path, "spawns_children"), work=tmp_path) as server:
        assert values(infer(server, "spawns_children", 2)) == [4]
        assert len(server.children()) == 4  # guest, two of its pool, its program
        server.stop()
        assert "children ended with -15" in server.log


def test_instances_of_a_model_work_side_by_side_and_exit_separately(tmp_path):
    gate = tmp_path / "gate"
    config = "instance_group { count: 2 kind: KIND_CPU }"
    write_model(tmp_path / "models", "two", GATED.format(str(gate)) + RUNS_CODE, config=config)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        one, other = pids_that_meet(server, tmp_path / "first")
        gate.touch()
        os.kill(one, signal.SIGKILL)
        server.wait_log("' is restarted in ")
        # The other goes on at once; strict readiness waits for both.
        assert evaluate(server, "two", "os.getpid()") == str(other)
        assert is_model_ready(server, "two")
        assert server.get("/v2/health/ready").status == 400
        gate.unlink()
        server.wait_health("ready")
        assert len(pids_that_meet(server, tmp_path / "again") - {one}) == 2


def pids_that_meet(server: ServerProcess, place: Path) -> set[int]:
    """The processes that execute two requests, each of which ends when the other has begun in another process."""
    place.mkdir()
    folder = repr(str(place))
    come = f"open(os.path.join({folder}, str(os.getpid())), 'w').close()"
    code = f"[{come}, [time.sleep(0.01) for _ in iter(lambda: len(os.listdir({folder})), 2)], os.getpid()][-1]"
    with ThreadPoolExecutor(2) as pool:
        return {int(pid) for pid in pool.map(lambda _: evaluate(server, "two", code), range(2))}
