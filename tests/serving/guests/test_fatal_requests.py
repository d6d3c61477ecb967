"""Requests that end guest after guest are refused, and their model lives on."""

from __future__ import annotations

import os
import re
import signal

import pytest
from serving.guests.test_supervision import guest_pid
from serving.repositories import Asking, infer, is_model_ready, repository, values
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
        r"\d+ s; other requests are served\. The last process: Stub process 'dies_mid_request_0' is not healthy: "
        r"pid \d+ was killed by SIGSEGV\.",
        reply.error,
    )
    assert values(infer(server, "dies_mid_request", 0)) == [0]
    assert is_model_ready(server, "dies_mid_request")
    # Neither did its exits use up the restarts of others.
    for number in range(2):
        assert "was killed by SIGSEGV" in infer(server, "dies_mid_request", FATAL, number).error
    assert values(infer(server, "dies_mid_request", 0)) == [0]


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
            asking = Asking(server, "dies_mid_request", 0.25)
            server.wait_for(lambda n=number: server.log.count("works for 0.25 s") == 2 * n - 1, "the request")
            os.kill(guest_pid(server, "dies_mid_request"), signal.SIGKILL)
            assert "was killed by SIGKILL" in asking.reply().error
            assert values(infer(server, "dies_mid_request", 0.25)) == [0.25]


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
