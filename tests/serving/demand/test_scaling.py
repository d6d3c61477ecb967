"""The number of instances follows the load, without a request that fails."""

from __future__ import annotations

from serving.ensembles.ensembles import write_model
from serving.repositories import infer, values
from support.server import ServerProcess
from support.threads import in_thread

RANGE = """
parameters {{ key: "min_instances" value {{ string_value: "1" }} }}
parameters {{ key: "max_instances" value {{ string_value: "3" }} }}
parameters {{ key: "scale_wait_ms" value {{ string_value: "20" }} }}
parameters {{ key: "scale_idle_seconds" value {{ string_value: "{idle}" }} }}
"""
PREWARM = 'parameters { key: "PREWARM" value { string_value: "true" } }\n'
HELD = """
def answer(self, request):
    while not os.path.exists({path!r}):
        time.sleep(0.01)
    return self.output(np.array([os.getpid()], np.float32))
"""


def guests(server, model):
    text = server.get(f"/v2/models/{model}/config").json()["instance_group"][0]["count"]
    return int(text)


def test_instances_are_added_for_requests_that_wait_and_removed_when_they_are_idle(tmp_path):
    models, gate = tmp_path / "models", tmp_path / "gate"
    write_model(models, "m", HELD.format(path=str(gate)), RANGE.format(idle=0.5) + PREWARM)
    with ServerProcess(models, work=tmp_path) as server:
        assert guests(server, "m") == 1
        asked = [in_thread(infer, server, "m", 1) for _ in range(6)]
        server.wait_for(lambda: guests(server, "m") == 3, "all instances")
        server.wait_log("instances of 'm' version 1: added: m_2; removed: none")
        assert server.log.count("prewarmed numpy") == 1, "added instances are forked from the same process"
        gate.touch()
        replies = [each.result(60) for each in asked]
        assert len({values(reply)[0] for reply in replies}) == 3
        server.wait_for(lambda: guests(server, "m") == 1, "idle instances to leave")
        server.wait_for(lambda: len(server.children()) == 2, "their processes to end")
        assert values(infer(server, "m", 1))
