"""A changed `instance_group` adds and removes instances; all others serve meanwhile, and are not started again."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from serving.repositories import Asking, document, infer, values
from support.server import Reply, ServerProcess

MODEL = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        if os.path.exists(os.path.join(args["model_repository"], "refuse")) and self.name.endswith("_3"):
            raise RuntimeError("no fourth one")
        pb_utils.Logger.log_info(f"begins {self.name}")

    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            pb_utils.Logger.log_info(f"{self.name} works for {seconds}")
            time.sleep(seconds)
            output = pb_utils.Tensor("OUT", np.array([float(self.name.rpartition("_")[2])], np.float32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses

    def finalize(self):
        time.sleep(0.3)
        pb_utils.Logger.log_info(f"ends {self.name}")
"""
TENSORS = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def groups(count: int, rest: str = "") -> str:
    return f"{TENSORS}instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n{rest}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    work = tmp_path_factory.mktemp("groups")
    (work / "models").mkdir()
    with ServerProcess(work / "models", "--model-control-mode=explicit", work=work) as running:
        yield running


@pytest.fixture
def server(shared):
    """A server with two instances of model m, which are m_0_0 and m_0_1."""
    folder = shared.work / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(groups(2))
    shared.begin_log()
    assert shared.post("/v2/repository/models/m/load").status == 200
    shared.wait_for(lambda: len(events(shared)) == 2, "both instances to log")
    yield shared
    shared.post("/v2/repository/models/m/unload")
    shared.wait_for(lambda: not shared.children(), "all guests to end")
    shutil.rmtree(folder)


def load(server: ServerProcess, expected: list[str], config: str = "") -> None:
    """Load the model, and check what its instances log: "begins m_0_0", in alphabetical order."""
    if config:
        (server.work / "models" / "m" / "config.pbtxt").write_text(config)
    server.begin_log()
    reply = server.post("/v2/repository/models/m/load")
    assert reply.status == 200, reply.error
    # A line of the log may come after the response.
    server.wait_for(lambda: len(events(server)) >= len(expected), f"{expected}, not only {events(server)}")
    assert sorted(events(server)) == expected


def events(server: ServerProcess) -> list[str]:
    return [found[0] for line in server.log.splitlines() if (found := re.search(r"(begins|ends) \w+", line))]


def test_only_instances_that_are_new_begin_and_only_removed_ones_end(server):
    guests = set(server.children())
    (server.work / "models" / "m" / "1" / "__pycache__").mkdir()
    load(server, ["begins m_0_2"], groups(3))
    assert guests < set(server.children())
    assert len(server.children()) == 3
    config = server.get("/v2/models/m/config").json()
    assert config["instance_group"][0]["count"] == 3
    load(server, [])
    server.wait_log("'m' is loaded and has not changed since")
    asking = [Asking(server, "m", 0.5) for _ in range(3)]
    assert {values(each.reply())[0] for each in asking} == {0.0, 1.0, 2.0}, "the new instance serves, too"
    load(server, ["ends m_0_1", "ends m_0_2"], groups(1))
    assert set(server.children()) < guests
    assert values(infer(server, "m", 0)) == [0.0]


def test_anything_else_that_changes_loads_all_instances_again(server):
    everything = ["begins m_0_0", "begins m_0_1", "begins m_0_2"]
    ended = ["ends m_0_0", "ends m_0_1"]
    load(server, [*everything, *ended], groups(3, 'parameters { key: "a" value { string_value: "b" } }'))
    (server.work / "models" / "m" / "1" / "model.py").write_text(MODEL + "\n")
    load(server, ["begins m_0_0", *ended, "ends m_0_2"], groups(1))


def test_a_configuration_of_a_request_may_change_instances_as_well(server):
    config = server.get("/v2/models/m/config").json()
    config["instance_group"][0]["count"] = 1
    server.begin_log()
    reply = server.post("/v2/repository/models/m/load", {"parameters": {"config": json.dumps(config)}})
    assert reply.status == 200
    assert len(server.children()) == 1
    server.wait_log("ends m_0_1")
    assert "begins" not in server.log


def test_an_instance_that_cannot_be_added_leaves_the_others_as_they_were(server):
    (server.work / "models" / "m" / "refuse").touch()
    load(server, ["begins m_0_0", "begins m_0_1", "ends m_0_0", "ends m_0_1"])  # a new file of the model
    guests = set(server.children())
    (server.work / "models" / "m" / "config.pbtxt").write_text(groups(4))
    reply = server.post("/v2/repository/models/m/load")
    assert "no fourth one" in reply.error
    server.wait_for(lambda: set(server.children()) == guests, "the instances that were added to end")
    assert server.get("/v2/models/m/config").json()["instance_group"][0]["count"] == 2
    assert values(infer(server, "m", 0))[0] in {0.0, 1.0}


def test_a_request_in_flight_ends_before_its_removed_instance(server):
    asking = [Asking(server, "m", 1.5) for _ in range(2)]
    server.wait_log("m_0_0 works for 1.5")
    server.wait_log("m_0_1 works for 1.5")
    (server.work / "models" / "m" / "config.pbtxt").write_text(groups(1))
    reply = server.post("/v2/repository/models/m/load")
    assert reply.headers["naiad-replaced-instances"] == "ending"
    assert {values(each.reply())[0] for each in asking} == {0.0, 1.0}
    server.wait_for(lambda: len(server.children()) == 1, "the removed instance to end")


def test_a_load_returns_after_finalize_of_the_replaced_instances(server):
    (server.work / "models" / "m" / "1" / "model.py").touch()
    assert server.post("/v2/repository/models/m/load").status == 200
    assert len(server.children()) == 2


def test_counts_that_mean_the_same_begin_nothing(server):
    load(server, ["ends m_0_1"], groups(1))
    guests = server.children()
    load(server, [], groups(0))
    load(server, [], groups(1))
    assert server.children() == guests


SEQUENCES = {"direct": "", "oldest": "oldest {}"}


@pytest.mark.parametrize("strategy", SEQUENCES)
def test_instances_of_sequences_change_in_place_unless_a_removed_one_has_a_sequence(server, strategy):
    batching = f"sequence_batching {{ {SEQUENCES[strategy]} max_sequence_idle_microseconds: 60000000 }}"
    load(server, ["begins m_0_0", "begins m_0_1", "ends m_0_0", "ends m_0_1"], groups(2, batching))
    load(server, ["ends m_0_1"], groups(1, batching))
    send(server, 7, sequence_start=True)
    first = server.children()
    load(server, ["begins m_0_1"], groups(2, batching))
    load(server, ["ends m_0_1"], groups(1, batching))
    assert server.children() == first
    load(server, ["begins m_0_1"], groups(2, batching))
    send(server, 8, sequence_start=True)
    (server.work / "models" / "m" / "config.pbtxt").write_text(groups(1, batching))
    server.begin_log()
    reloading = Loading(server)
    server.wait_log("begins m_0_0")
    for sequence in (7, 8):
        assert values(send(server, sequence, sequence_end=True)) == [sequence - 7], "its state is in that instance"
    assert reloading.reply().status == 200
    server.wait_for(lambda: len(events(server)) == 3, "the old instances to end")
    assert sorted(events(server)) == ["begins m_0_0", "ends m_0_0", "ends m_0_1"]


def send(server: ServerProcess, sequence: int, **parameters: bool) -> Reply:
    body = {**document(0), "parameters": {"sequence_id": sequence, **parameters}}
    reply = server.post("/v2/models/m/infer", body)
    assert reply.status == 200, reply.error
    return reply


class Loading(Asking):
    """A load of the model by a thread of its own."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server, "m")

    def _ask(self, server: ServerProcess, model: str, *_values: float) -> None:
        self._reply = server.post(f"/v2/repository/models/{model}/load")
