"""Requests that end guest after guest are refused, and their model lives on."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal

import pytest
from serving.guests.test_supervision import guest_pid
from serving.repositories import Asking, infer, is_model_ready, repository, values
from support.server import HOST, ServerProcess

FATAL = -float(signal.SIGSEGV)


@pytest.fixture
def server(tmp_path):
    # So few restarts would give the model up before the fatal request is recognised, if its exits counted.
    with ServerProcess(
        repository(tmp_path / "models", ["dies_mid_request"]), "--stub-restart-limit=2", work=tmp_path
    ) as running:
        yield running


def test_a_request_that_ends_three_guests_is_refused_and_the_model_serves_the_others(server):
    """Before, its third repetition had the model given up."""
    for _ in range(3):
        assert "was killed by SIGSEGV" in infer(server, "dies_mid_request", FATAL, 7).error
    reply = infer(server, "dies_mid_request", FATAL, 7)
    assert reply.status == 500
    assert re.fullmatch(
        r"\[request id: <id_unknown>\] this request ended 3 processes of model 'dies_mid_request' and is refused for "
        r"\d+ s; other requests are served\. The last process: Stub process 'dies_mid_request_0' is not healthy. Reason: "
        r"pid \d+ was killed by SIGSEGV\.",
        reply.error,
    )
    assert values(infer(server, "dies_mid_request", 0)) == [0]
    assert is_model_ready(server, "dies_mid_request")
    # Neither did its exits use up the restarts of others.
    for number in range(2):
        assert "was killed by SIGSEGV" in infer(server, "dies_mid_request", FATAL, number).error
    assert values(infer(server, "dies_mid_request", 0)) == [0]


def series(server, name: str) -> dict[str, float]:
    """The values of the metric's series, by their labels."""
    connection = http.client.HTTPConnection(HOST, server.metrics_port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{"))
    return {labels.removeprefix(name): float(value) for labels, value in found}


def test_refused_requests_are_counted_by_reason_and_the_page_shows_a_model_that_refuses(tmp_path):
    """Before, 200 refusals left every metric and the page as they were."""
    models = repository(tmp_path / "models", ["dies_mid_request"])
    with ServerProcess(models, "--stub-restart-limit=2", "--ui=true", work=tmp_path) as server:
        name = "naiad_requests_refused_total"
        of_model = '{{model="dies_mid_request",reason="{}",version="1"}}'
        reasons = ("fatal", "invalid", "not_ready", "other", "queue_full")
        start = series(server, name)
        assert start == {
            **{of_model.format(reason): 0 for reason in reasons},
            **{f'{{reason="{reason}"}}': 0 for reason in ("exiting", "not_loaded", "unknown_model")},
        }
        ready = '{model="dies_mid_request",version="1"}'
        assert series(server, "naiad_model_ready") == {ready: 1}
        for _ in range(3):
            assert "was killed by SIGSEGV" in infer(server, "dies_mid_request", FATAL, 7).error
        for _ in range(5):
            assert "this request ended 3 processes" in infer(server, "dies_mid_request", FATAL, 7).error
        assert server.post("/v2/models/dies_mid_request/infer", {"inputs": []}).status == 400
        assert server.post("/v2/models/nosuch/infer", {"inputs": []}).status == 404
        server.wait_for(lambda: is_model_ready(server, "dies_mid_request"), "the restarted process")
        assert series(server, name) == start | {
            of_model.format("fatal"): 5,
            of_model.format("invalid"): 1,
            '{reason="unknown_model"}': 1,
        }
        assert sum(series(server, "nv_inference_request_failure").values()) == 3
        assert series(server, "naiad_model_ready") == {ready: 0}
        (row,) = json.loads(server.get("/ui/data/state").body)["models"]
        assert (row["state"], row["condition"], row["serving"]) == ("READY", "refusing", 1)
        assert re.fullmatch(
            r"it refuses 1 request that ended 3 of its processes, for \d+ s; other requests are served\. The last "
            r"process: Stub process 'dies_mid_request_0' is not healthy. Reason: pid \d+ was killed by SIGSEGV\.",
            row["reason"],
        )


def test_of_many_copies_in_the_queue_three_are_executed(server):
    first = Asking(server, "dies_mid_request", 1)
    server.wait_log("works for 1.0 s")
    copies = [Asking(server, "dies_mid_request", FATAL) for _ in range(12)]
    others = [Asking(server, "dies_mid_request", 0) for _ in range(3)]
    errors = [copy.reply().error for copy in copies]
    assert values(first.reply()) == [1]
    assert sum("was killed by SIGSEGV" in error and "this request ended" not in error for error in errors) == 3
    assert sum("this request ended 3 processes" in error for error in errors) == 9
    assert [values(other.reply()) for other in others] == [[0]] * 3


def test_a_request_that_is_answered_between_exits_is_not_refused(tmp_path):
    """As when something else kills guests while the same request comes all the time."""
    with ServerProcess(repository(tmp_path / "models", ["dies_mid_request"]), work=tmp_path) as server:
        for number in range(1, 4):
            asking = Asking(server, "dies_mid_request", 1)
            server.wait_for(lambda n=number: server.log.count("works for 1.0 s") == 2 * n - 1, "the request")
            os.kill(guest_pid(server, "dies_mid_request"), signal.SIGKILL)
            assert "was killed by SIGKILL" in asking.reply().error
            assert values(infer(server, "dies_mid_request", 1)) == [1]


def test_requests_that_waited_before_the_exits_clear_themselves_by_their_answers(tmp_path):
    """As when something kills guests in quick succession under a load of equal requests."""
    with ServerProcess(repository(tmp_path / "models", ["dies_mid_request"]), work=tmp_path) as server:
        equal = [Asking(server, "dies_mid_request", 0.25) for _ in range(12)]
        for number in range(4):
            count = 2 * number + 1
            server.wait_for(lambda count=count: server.log.count("works for 0.25 s") >= count, "the next but one")
            pid = guest_pid(server, "dies_mid_request")
            os.kill(pid, signal.SIGKILL)
            server.wait_log(f"pid {pid} was killed by SIGKILL")
        replies = [asking.reply() for asking in equal]
        failed = [reply.error for reply in replies if reply.status != 200]
        assert len(failed) == 4
        assert all("was killed by SIGKILL" in error and "this request ended" not in error for error in failed)
