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


def test_the_old_version_is_waited_for_no_longer_than_an_exit_would(serve):
    file, started = serve("--exit-timeout-secs=1")
    with started as server:
        old = ask(server, 1, "start")
        load_anew(server, file)
        server.wait_for(lambda: old not in pids(server), "the old guest to end")
        assert "must specify the START flag" in ask(server, 1)


def test_three_versions_may_serve_their_sequences_at_once(serve):
    file, started = serve()
    with started as server:
        processes = []
        for sequence in (1, 2, 3):
            processes.append(ask(server, sequence, "start"))
            if sequence != 3:
                load_anew(server, file)
        assert len(set(processes)) == 3
        assert [ask(server, sequence) for sequence in (1, 2, 3)] == processes
        assert ask(server, 2, "end") == processes[1]
        server.wait_for(lambda: pids(server) == {processes[0], processes[2]}, "the second guest to end")
        assert [ask(server, sequence, "end") for sequence in (1, 3)] == [processes[0], processes[2]]
        server.wait_for(lambda: pids(server) == {processes[2]}, "the first guest to end")


def test_nothing_is_loaded_where_nothing_has_changed_meanwhile(serve):
    file, started = serve()
    with started as server:
        ask(server, 1, "start")
        load_anew(server, file)
        assert ask(server, 1) in pids(server)
        count = server.log.count("loading: m:")
        assert server.post("/v2/repository/models/m/load").status == 200
        assert server.log.count("loading: m:") == count
        ask(server, 1, "end")


def test_an_unload_ends_both_and_does_not_wait(serve):
    file, started = serve()
    with started as server:
        ask(server, 1, "start")
        load_anew(server, file)
        assert server.post("/v2/repository/models/m/unload").status == 200
        server.wait_for(lambda: not pids(server), "both guests to end")


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


ENSEMBLE = """
name: "e" platform: "ensemble" max_batch_size: 4
input { name: "CODE" data_type: TYPE_STRING dims: 1 }
output { name: "OUT" data_type: TYPE_STRING dims: 1 }
ensemble_scheduling { step {
  model_name: "m" model_version: -1
  input_map { key: "CODE" value: "CODE" }
  output_map { key: "OUT" value: "OUT" }
} }
"""


def test_an_ensemble_that_is_loaded_anew_lets_its_models_start_sequences_as_before(serve):
    file, started = serve()
    ensemble = file.parents[2] / "e"
    (ensemble / "1").mkdir(parents=True)
    (ensemble / "config.pbtxt").write_text(ENSEMBLE)
    with started as server:
        assert server.post("/v2/repository/models/e/load").status == 200
        pid = ask(server, 1, "start")
        (ensemble / "config.pbtxt").write_text(ENSEMBLE + "# changed")
        assert server.post("/v2/repository/models/e/load").status == 200
        assert ask(server, 2, "start") == pid
        assert [ask(server, sequence, "end") for sequence in (1, 2)] == [pid, pid]
