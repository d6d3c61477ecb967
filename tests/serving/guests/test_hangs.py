"""Models whose `execute` makes no progress: they are named, their stacks logged, and they are restarted."""

from __future__ import annotations

import re

import psutil
import pytest
from serving.contract import Stream, run
from serving.repositories import infer, is_model_ready, repository, values
from support.console import shown_instance
from support.server import ServerProcess
from support.threads import in_thread

LIMIT = 2
"""Seconds: a guest that gets no processor for so long hangs, too."""
NO_LIMIT = 'parameters { key: "HANG_SECONDS" value { string_value: "0" } }\n'
ERROR = (
    rf"Stub process '{{model}}_0' is not healthy. Reason: pid {{pid}} was killed: it made no progress for {LIMIT} s "
    r"\(--stub-hang-seconds or HANG_SECONDS\)\."
)
NAMES = (
    "hangs_in_execute",
    "holds_the_gil",
    "dies_mid_request",
    "runs_code",
    "runs_code_decoupled",
    "runs_coroutine",
)


@pytest.fixture(scope="module")
def server(work):
    models = repository(work / "models", NAMES, dies_mid_request=NO_LIMIT)
    with ServerProcess(models, f"--stub-hang-seconds={LIMIT}", "--ui=true", work=work) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "frame"), [("hangs_in_execute", "wait_for_what_never_happens"), ("holds_the_gil", "execute")]
)
def test_a_model_that_hangs_is_restarted_and_its_stacks_are_logged(server, model, frame):
    pid = shown_instance(server, model)["pid"]
    asking = in_thread(infer, server, model, 1)
    server.wait_log(f"'{model}_0' (pid {pid}) hangs: it made no progress for {LIMIT} s")
    reply = asking.result(60)
    assert reply.status == 500
    assert re.match(ERROR.format(model=model, pid=pid), reply.error)
    line = rf"{model}_0 pid {pid}\] .*model.py.*, line \d+ in {frame}\b"
    server.wait_for(lambda: re.search(line, server.log), "the stacks")
    server.wait_for(lambda: is_model_ready(server, model), "another process")
    guest = shown_instance(server, model)
    # On a busy machine a process that starts may be late as well, and is restarted once more.
    assert (guest["state"], list(guest["restarts"]), guest["pid"] != pid) == ("ready", ["hang"], True)
    assert not psutil.pid_exists(pid)


def test_a_hung_instance_is_shown_and_not_ready(server):
    """In the half second before it is killed, which a busy machine may skip: then the next hang is observed."""
    for number in range(5):
        before = shown_instance(server, "hangs_in_execute")["pid"]
        asking = in_thread(infer, server, "hangs_in_execute", 2 + number)  # the same one would be refused at last
        seen = server.wait_for(lambda: unless_ready(shown_instance(server, "hangs_in_execute")), "another state")
        was_ready = is_model_ready(server, "hangs_in_execute")
        still = shown_instance(server, "hangs_in_execute")
        assert "made no progress" in asking.result(60).error
        assert values(infer(server, "hangs_in_execute", 0)) == [0]
        if seen["state"] == still["state"] == "hung":
            assert seen["pid"] == before
            assert not was_ready
            return
    pytest.fail("five hangs, and the page never showed one")


def unless_ready(instance):
    return None if instance["state"] == "ready" else instance


def test_a_model_that_waits_for_another_does_not_hang(server):
    code = f"return [answer(value_of(to('dies_mid_request', tensor({1.5 * LIMIT})).exec()))]"
    assert run(server, "runs_code", code) == {"OUT": [1.5 * LIMIT]}
    assert run(server, "runs_coroutine", code.replace("exec()", "async_exec()").replace("to(", "await to(")) == {
        "OUT": [1.5 * LIMIT]
    }


def test_a_thread_that_never_answers_hangs_after_execute_has_returned_too(server):
    pid = shown_instance(server, "runs_code_decoupled")["pid"]
    with Stream(server) as opened:
        opened.send("runs_code_decoupled", "model.kept = request.get_response_sender()")
        (event,) = opened.wait(lambda events: events, "the error")
        assert f"made no progress for {LIMIT} s" in str(event)
    server.wait_for(lambda: shown_instance(server, "runs_code_decoupled")["pid"] not in {0, pid}, "another process")
