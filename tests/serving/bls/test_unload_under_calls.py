"""Unloading and loading again while calls and streams of a model are under way: they come to their own end."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from serving.contract import REFERENCE, Stream, run
from serving.repositories import repository
from support.server import TRITONSERVER, Reply, ServerProcess
from support.threads import in_thread
from support.waiting import until

MODELS = ("runs_code", "runs_coroutine", "runs_code_decoupled", "identity")


@pytest.fixture
def server(tmp_path):
    models = repository(tmp_path / "models", MODELS)
    options = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in MODELS))
    with ServerProcess(models, *options, work=tmp_path, command=[REFERENCE or TRITONSERVER]) as running:
        yield running


def control(server: ServerProcess, model: str, action: str) -> Future[Reply]:
    """Ask for it in a thread of its own: the answer may come only when the model has ended."""
    with (server.work / "models" / model / "config.pbtxt").open("a") as file:
        file.write("# changed: what is loaded again without a change stays as it is\n")
    return in_thread(server.post, f"/v2/repository/models/{model}/{action}", {})


def waiting(gate: Path) -> str:
    return f"""
from pathlib import Path
Path({str(gate)!r}).write_text("begun")
while Path({str(gate)!r}).read_text() != "open":
    time.sleep(0.005)
"""


def begun(gate: Path) -> None:
    until(lambda: gate.exists() and gate.read_text() == "begun", "it to begin")


def is_serving(server: ServerProcess, model: str) -> bool:
    return server.get(f"/v2/models/{model}/ready").status == 200


@pytest.mark.parametrize("action", ["unload", "load"])
def test_a_stream_is_finished_by_the_model_it_began_with(server, tmp_path, action):
    gate = tmp_path / "gate"
    code = "sender = request.get_response_sender()\nsender.send(answer(1))\n" + waiting(gate)
    with Stream(server) as opened:
        opened.send("runs_code_decoupled", code + "sender.send(answer(2), FINAL)")
        begun(gate)
        done = control(server, "runs_code_decoupled", action)
        if action == "unload":
            until(lambda: not is_serving(server, "runs_code_decoupled"), "it to be unloaded")
        gate.write_text("open")
        assert opened.wait(lambda events: len(events) == 2, "the end") == [1, {"last": 2}]
    done.result(30)


@pytest.mark.parametrize("action", ["unload", "load"])
@pytest.mark.parametrize("unloaded", ["runs_code", "runs_coroutine"])
def test_a_call_is_answered_though_its_caller_or_target_is_unloaded(server, tmp_path, action, unloaded):
    gate = tmp_path / "gate"
    inner = waiting(gate) + "return [answer('late')]"
    code = f"return [answer(value_of(to('runs_coroutine', code({inner!r})).exec()))]"
    asking = in_thread(run, server, "runs_code", code)
    begun(gate)
    done = control(server, unloaded, action)
    if action == "unload":
        until(lambda: not is_serving(server, unloaded), "it to be unloaded")
    gate.write_text("open")
    assert asking.result(30) == {"OUT": ['"late"']}
    done.result(30)
    if action == "load":
        assert run(server, "runs_code", "return [answer(value_of(to('identity', tensor(1)).exec()))]") == {"OUT": [1.0]}
