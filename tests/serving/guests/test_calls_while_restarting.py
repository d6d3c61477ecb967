"""Calls of models and steps of ensembles to a model whose guest restarts: they wait for the next guest."""

from __future__ import annotations

import os
import signal

import pytest
from serving.contract import run
from serving.ensembles.ensembles import write_ensemble, write_function
from serving.guests.test_supervision import GATED, guest_pid
from serving.repositories import repository
from support.server import ServerProcess
from support.threads import in_thread

CALLS = 5


@pytest.fixture(scope="module")
def gate(work):
    return work / "gate"


@pytest.fixture(scope="module")
def server(tmp_path_factory, gate):
    work = tmp_path_factory.mktemp("restarting")
    models = repository(work / "models", ["runs_code"])
    write_function(models, "callee", "x + 1")
    with (models / "callee" / "1" / "model.py").open("a") as file:
        file.write("\n    " + GATED.format(str(gate)).strip().replace("\n", "\n    "))
    write_ensemble(models, "ensemble", "callee IN=X > OUT=Y")
    with ServerProcess(models, work=work) as running:
        yield running


def kill_callee(server: ServerProcess) -> None:
    before = server.log.count("'callee_0' is restarted in")
    server.wait_for(lambda: server.log.count("'callee_0' is ready: pid ") > before, "the guest")
    os.kill(guest_pid(server, "callee"), signal.SIGKILL)
    server.wait_for(lambda: server.log.count("'callee_0' is restarted in") > before, "its exit")


@pytest.mark.parametrize("model", ["callee", "ensemble"])
def test_calls_to_a_model_that_restarts_are_answered(server, gate, model):
    """They failed at once with "Model 'callee' is not ready"; requests of clients waited."""
    names = ("IN", "OUT") if model == "callee" else ("X", "Y")
    code = f"""
        calls = [
            to({model!r}, pb_utils.Tensor({names[0]!r}, np.array([n], np.float32)), outputs=[{names[1]!r}])
            for n in range({CALLS})
        ]
        results = []
        threads = [threading.Thread(target=lambda call=call: results.append(value_of(call.exec()))) for call in calls]
        for thread in threads:
            thread.start()
        open({str(gate)!r} + "called", "w").close()
        for thread in threads:
            thread.join()
        return [answer(sorted([str(each) for each in results]))]
    """
    gate.touch()
    kill_callee(server)
    called = gate.with_name("gatecalled")
    called.unlink(missing_ok=True)
    opening = in_thread(lambda: (server.wait_for(called.exists, "the calls"), gate.unlink()))
    assert run(server, "runs_code", code) == [str({names[1]: [n + 1.0]}) for n in range(CALLS)]
    opening.result(60)
