"""A changed `instance_group` adds and removes instances; all others serve meanwhile, and are not started again."""

from __future__ import annotations

import re
import shutil

import pytest
from serving.repositories import infer, values
from support.model_files import python_config, write_files
from support.server import ServerProcess
from support.threads import in_thread

MODEL = """
def initialize(self, args):
    self.name = args["model_instance_name"]
    self.gate = os.path.join(args["model_repository"], "..", "..", "gate")
    pb_utils.Logger.log_info(f"begins {self.name}")

def respond(self, request):
    if pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]:
        pb_utils.Logger.log_info(f"{self.name} waits for the gate")
        while not os.path.exists(self.gate):
            time.sleep(0.01)
    output = pb_utils.Tensor("OUT", np.array([float(self.name.rpartition("_")[2])], np.float32))
    return pb_utils.InferenceResponse([output])

def finalize(self):
    time.sleep(0.3)
    pb_utils.Logger.log_info(f"ends {self.name}")
"""


def groups(count: int) -> str:
    return python_config("IN FP32 1", "OUT FP32 1", f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n")


@pytest.fixture(scope="module")
def shared(work):
    (work / "models").mkdir()
    with ServerProcess(work / "models", "--model-control-mode=explicit", work=work) as running:
        yield running


@pytest.fixture
def server(shared):
    """A server with two instances of model m, which are m_0_0 and m_0_1."""
    write_files(shared.work / "models", "m", groups(2), MODEL)
    shared.begin_log()
    assert shared.post("/v2/repository/models/m/load").status == 200
    shared.wait_for(lambda: len(events(shared)) == 2, "both instances to log")
    yield shared
    shared.post("/v2/repository/models/m/unload")
    shared.wait_for(lambda: not shared.children(), "all guests to end")
    shutil.rmtree(shared.work / "models" / "m")
    (shared.work / "gate").unlink(missing_ok=True)


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
    asking = [in_thread(infer, server, "m", 1) for _ in range(3)]
    for number in range(3):
        server.wait_log(f"m_0_{number} waits for the gate")
    (server.work / "gate").touch()
    assert {values(each.result(60))[0] for each in asking} == {0.0, 1.0, 2.0}, "the new instance serves, too"
    load(server, ["ends m_0_1", "ends m_0_2"], groups(1))
    assert set(server.children()) < guests
    assert values(infer(server, "m", 0)) == [0.0]


def test_a_load_returns_after_finalize_of_the_replaced_instances(server):
    (server.work / "models" / "m" / "1" / "model.py").touch()
    assert server.post("/v2/repository/models/m/load").status == 200
    assert len(server.children()) == 2
