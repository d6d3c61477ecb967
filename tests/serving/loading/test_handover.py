"""A model with sequences under way is loaded anew: the version that has them serves them to their end."""

from __future__ import annotations

import os
import signal

import pytest
from serving.written import write_model
from support.server import ServerProcess

PID = """
def execute(self, requests):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[str(os.getpid())]], np.object_))])
            for _ in requests]
"""
CONFIG = """
max_batch_size: 4
sequence_batching {{ direct {{ }} max_sequence_idle_microseconds: {} }}
"""
MINUTE = 60_000_000


@pytest.fixture
def serve(tmp_path):
    def start(*options, idle=MINUTE):
        file = write_model(tmp_path / "models", "m", PID, config=CONFIG.format(idle))
        return file, ServerProcess(
            tmp_path / "models", "--model-control-mode=explicit", "--load-model=m", *options, work=tmp_path
        )

    return start


def ask(server, sequence, flag=""):
    """The process that answers a request of a sequence, or the error."""
    parameters = {"sequence_id": sequence, **({f"sequence_{flag}": True} if flag else {})}
    inputs = [{"name": "CODE", "datatype": "BYTES", "shape": [1, 1], "data": [""]}]
    reply = server.post("/v2/models/m/infer", {"inputs": inputs, "parameters": parameters})
    return int(reply.json()["outputs"][0]["data"][0]) if reply.status == 200 else reply.error


def load_anew(server, file):
    file.touch()
    assert server.post("/v2/repository/models/m/load").status == 200


def pids(server):
    return {child.pid for child in server.children()}


def test_sequences_stay_with_the_version_that_has_them_and_others_begin_with_the_new_one(serve):
    file, started = serve()
    with started as server:
        old = ask(server, 1, "start")
        assert ask(server, 2, "start") == old
        load_anew(server, file)
        new = ask(server, 3, "start")
        assert new != old
        assert [ask(server, sequence) for sequence in (1, 2, 3)] == [old, old, new]
        assert ask(server, 1, "end") == old
        assert "must specify the START flag" in ask(server, 1)
        assert ask(server, 2, "start") == new, "a sequence that begins anew does so with the new version"
        assert ask(server, 2) == new
        assert ask(server, 2, "end") == new
        assert ask(server, 2, "end") == old, "what it left open goes on, until it ends"
        server.wait_for(lambda: pids(server) == {new}, "the old guest to end")
        assert ask(server, 3, "end") == new


def test_a_sequence_that_is_idle_too_long_holds_up_the_old_version_no_longer(serve):
    file, started = serve(idle=300_000)
    with started as server:
        old = ask(server, 1, "start")
        load_anew(server, file)
        server.wait_for(lambda: len(pids(server)) == 1 and old not in pids(server), "the old guest to end")


def test_sequences_of_both_may_end_while_the_server_exits(serve):
    file, started = serve()
    with started as server:
        old = ask(server, 1, "start")
        load_anew(server, file)
        new = ask(server, 2, "start")
        os.kill(server.pid, signal.SIGTERM)
        server.wait_log("Waiting for in-flight requests to complete.")
        assert (ask(server, 1), ask(server, 2)) == (old, new)
        assert (ask(server, 1, "end"), ask(server, 2, "end")) == (old, new)
        assert server.wait_exit() == 0
