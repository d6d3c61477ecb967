"""Models that were given up recover by themselves, and an orchestrator can notice those that do not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from serving.guests.test_supervision import guest_pid
from serving.repositories import index, infer, is_model_ready, repository, values
from support.server import ServerProcess

BROKEN = """

    def initialize(self, args):
        if os.path.exists({!r}):
            os._exit(7)
"""
RECOVERS = ("--stub-restart-limit=1", "--stub-recovery-secs=1")


def breakable(tmp_path: Path, config: str = "") -> tuple[Path, Path]:
    """A repository of one model, and the file that lets its guests exit while they start."""
    broken = tmp_path / "broken"
    repo = repository(tmp_path / "models", ["dies_mid_request"], dies_mid_request=config)
    with (repo / "dies_mid_request" / "1" / "model.py").open("a") as file:
        file.write(BROKEN.format(str(broken)))
    return repo, broken


def test_a_model_that_was_given_up_is_tried_after_pauses_that_double_until_it_serves(tmp_path):
    """It stayed unavailable for ever, in control mode none until the server was restarted."""
    repo, broken = breakable(tmp_path)
    with ServerProcess(repo, *RECOVERS, work=tmp_path) as server:
        broken.touch()
        os.kill(guest_pid(server, "dies_mid_request"), signal.SIGKILL)
        server.wait_log("it is tried again in 1 s; load the model again to retry at once")
        reply = infer(server, "dies_mid_request", 0)
        assert reply.status == 503
        assert "exited with status 7 while it started. It died 2 times within 60 s" in reply.error
        server.wait_log("It was the process with which recovery was tried; it is tried again in 2 s;")
        assert index(server)["dies_mid_request"]["state"] == "UNAVAILABLE"
        broken.unlink()
        server.wait_for(lambda: is_model_ready(server, "dies_mid_request"), "the recovery")
        assert values(infer(server, "dies_mid_request", 0)) == [0]
        assert index(server)["dies_mid_request"] == {"name": "dies_mid_request", "version": "1", "state": "READY"}
        # Until it has served for a while, one exit is enough.
        assert "was killed by SIGKILL" in infer(server, "dies_mid_request", -9).error
        server.wait_log("recovery was tried; it is tried again in 4 s;")
        assert "died 1 times" not in server.log
        assert server.get("/v2/health/live").status == 200


def test_a_server_whose_models_do_not_recover_is_not_live(tmp_path):
    repo, _ = breakable(tmp_path)
    with ServerProcess(repo, "--stub-restart-limit=0", work=tmp_path) as server:
        assert server.get("/v2/health/live").status == 200
        assert "was killed by SIGKILL" in infer(server, "dies_mid_request", -9).error
        server.wait_for(lambda: server.get("/v2/health/live").status == 400, "it to be noticed")


def test_a_server_stays_live_while_one_model_serves_or_clients_may_load_models(tmp_path):
    repo, _ = breakable(tmp_path)
    repository(repo, ["identity"])
    with ServerProcess(repo, "--stub-restart-limit=0", work=tmp_path) as server:
        assert "was killed by SIGKILL" in infer(server, "dies_mid_request", -9).error
        assert infer(server, "dies_mid_request", 0).status == 503
        assert server.get("/v2/health/live").status == 200
    options = ("--stub-restart-limit=0", "--model-control-mode=explicit", "--load-model=dies_mid_request")
    with ServerProcess(repo, *options, work=tmp_path) as server:
        assert "was killed by SIGKILL" in infer(server, "dies_mid_request", -9).error
        assert infer(server, "dies_mid_request", 0).status == 503
        assert server.get("/v2/health/live").status == 200
