"""Requests that end guest after guest are refused, and their model lives on."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from pathlib import Path

import pytest
from serving.repositories import Asking, infer, is_model_ready, repository, values
from serving.written import write_model
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


WAITS = """
print("executed in", os.getpid())
while not (left := os.listdir({0!r})):
    time.sleep(0.01)
os.unlink(os.path.join({0!r}, left[0]))
"""


class Gated:
    """A server with a model of one guest, whose requests are equal; each is executed until it gets a ticket."""

    def __init__(self, tmp_path: Path) -> None:
        self.server = ServerProcess(tmp_path / "models", work=tmp_path)
        self._tickets = tmp_path / "tickets"
        self._tickets.mkdir()
        write_model(tmp_path / "models", "code")

    def ask(self) -> Asking:
        return AskingCode(self.server, WAITS.format(str(self._tickets)))

    def give(self, count: int) -> None:
        for number in range(count):
            (self._tickets / str(number)).touch()

    def kill_in_execution(self, number: int) -> None:
        """Kill the guest once *number* requests have been executed, or are."""
        begun = "executed in "
        self.server.wait_for(lambda: self.server.log.count(begun) == number, f"request {number}")
        pid = int(re.findall(rf"{begun}(\d+)", self.server.log)[-1])
        os.kill(pid, signal.SIGKILL)
        self.server.wait_log(f"pid {pid} was killed by SIGKILL")


class AskingCode(Asking):
    """Has the model run code."""

    def __init__(self, server: ServerProcess, code: str) -> None:
        self._code = code
        super().__init__(server, "code")

    def _ask(self, server: ServerProcess, model: str, *_values: float) -> None:
        tensor = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [self._code]}
        self._reply = server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def test_a_request_that_is_answered_between_exits_is_not_refused(tmp_path):
    """As when something else kills guests while the same request comes all the time."""
    gated = Gated(tmp_path)
    with gated.server:
        for number in range(3):
            asking = gated.ask()
            gated.kill_in_execution(2 * number + 1)
            assert "was killed by SIGKILL" in asking.reply().error
            gated.give(1)
            assert gated.ask().reply().status == 200


def test_requests_that_waited_before_the_exits_clear_themselves_by_their_answers(tmp_path):
    """As when something kills guests in quick succession under a load of equal requests."""
    gated = Gated(tmp_path)
    with gated.server as server:
        equal = [gated.ask() for _ in range(12)]
        waiting = "nv_inference_pending_request_count"
        server.wait_for(lambda: sum(series(server, waiting).values()) == 11, "all but the first to wait")
        for number in range(4):
            gated.kill_in_execution(2 * number + 1)
            gated.give(1 if number < 3 else 5)
        replies = [asking.reply() for asking in equal]
        failed = [reply.error for reply in replies if reply.status != 200]
        assert len(failed) == 4
        assert all("was killed by SIGKILL" in error and "this request ended" not in error for error in failed)
