"""The number of instances follows the load, without a request that fails."""

from __future__ import annotations

from serving.asking import Ask
from serving.ensembles.ensembles import write_model
from serving.repositories import Asking, values
from support.server import ServerProcess

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
        asked = [Asking(server, "m", 1) for _ in range(6)]
        server.wait_for(lambda: guests(server, "m") == 3, "all instances")
        server.wait_log("instances of 'm' version 1: added: m_2; removed: none")
        assert server.log.count("prewarmed numpy") == 1, "added instances are forked from the same process"
        gate.touch()
        replies = [each.reply() for each in asked]
        assert len({values(reply)[0] for reply in replies}) == 3
        server.wait_for(lambda: guests(server, "m") == 1, "idle instances to leave")
        server.wait_for(lambda: len(server.children()) == 2, "their processes to end")
        assert values(Asking(server, "m", 1).reply())


def test_an_instance_with_a_sequence_stays_until_that_ends(tmp_path):
    sequences = "max_batch_size: 1\nsequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
    pid = "def answer(self, request):\n    return self.output(np.array([[os.getpid()]], np.float32))\n"
    write_model(tmp_path / "models", "m", pid, sequences + RANGE.format(idle=0.3))
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:

        def ask(sequence, flags=""):
            asked = Ask(server, "m", sequence, flags)
            asked.finish()
            return asked.reply.json()["outputs"][0]["data"][0]

        first = ask(1, "start")
        second = ask(2, "start")  # waits for an instance, which is added
        assert first != second
        assert ask(1, "end") == first
        server.wait_for(lambda: guests(server, "m") == 2, "the number of instances")
        text = "since fewer are needed"
        assert ask(2) == second
        assert text not in server.log
        assert ask(2, "end") == second
        server.wait_log(text)
        server.wait_for(lambda: guests(server, "m") == 1, "the idle instance to leave")


def test_instances_with_requests_stay(tmp_path):
    models, gate = tmp_path / "models", tmp_path / "gate"
    write_model(models, "m", HELD.format(path=str(gate)), RANGE.format(idle=0.1))
    with ServerProcess(models, work=tmp_path) as server:
        asked = [Asking(server, "m", 1) for _ in range(3)]
        server.wait_for(lambda: guests(server, "m") == 3, "all instances")
        text = "since fewer are needed"
        assert text not in server.log
        gate.touch()
        assert len({values(each.reply())[0] for each in asked}) == 3
        server.wait_log(text)
