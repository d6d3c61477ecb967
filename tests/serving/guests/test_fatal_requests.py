"""Requests that end guest after guest are refused, and their model lives on."""

from __future__ import annotations

import json
import re
import signal

import pytest
from serving.repositories import infer, is_model_ready, repository, values
from support.server import ServerProcess

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
    return {labels.removeprefix(name): value for labels, value in server.samples(f"{name}{{").items()}


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
