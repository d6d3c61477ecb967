"""The loads of `python -m bench.endurance`, small and short: nothing lost, nothing twice, nothing mixed up, nothing kept."""

from __future__ import annotations

import asyncio
import sys

import pytest
from support.server import HOST, ServerProcess

from bench.endurance import repository, trial
from bench.endurance.account import Account
from bench.endurance.clients import Address
from bench.endurance.measure import Held, Reading
from bench.endurance.scenarios import Scenario, Size, scenarios

SMALL = Size(seconds=1.0, chains=12, streams=6, responses=200, stalled=2, cancelling=8)
# One of each kind; all of them take `python -m bench.endurance` half an hour.
NAMES = (
    pytest.param("chains", marks=pytest.mark.endurance),
    "chains, async, 2 instances",
    pytest.param("streams, threads", marks=pytest.mark.endurance),
    "streams, forwarded",
    pytest.param("not reading, threads", marks=pytest.mark.endurance),
    pytest.param("giving up, 2 instances", marks=pytest.mark.endurance),
)
ALL = {scenario.name: scenario for scenario in scenarios(None)}


def run(scenario: Scenario, size: Size, work) -> trial.Trial:
    with ServerProcess(repository.write(scenario.models, work / "models"), work=work) as server:
        address = Address(HOST, server.http_port, server.grpc_port, server.pid)
        found = asyncio.run(trial.run(scenario, address, size, parts=2, most_parts=4))
        assert not trial.judge_log(server.log)
    return found


# Filling its caches a process grows in each part of a short load: that is judged by the long one alone.
GROWS = ("memory of", "threads of")
# What a process opens once, it opens in a later part on a busy machine: of descriptors the last two parts are judged.
OPENED = "descriptors of"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", NAMES)
def test_a_small_load_is_answered_whole_and_leaves_nothing(name, tmp_path):
    found = run(ALL[name], SMALL, tmp_path)
    account = found.account
    assert [problem for problem in account.violations if not problem.startswith((*GROWS, OPENED))] == []
    assert [problem for problem in trial.grown(found.pauses[-2:]) if not problem.startswith(GROWS)] == []
    assert account.answered + account.given_up == account.sent > 0


# -- the judges themselves ----------------------------------------------------------------------------------------


def reading(private: int = 0, descriptors: int = 10, segments: int = 0, threads: int = 5, pid: int = 1) -> Reading:
    host = Held(private=private, pss=private, segments=segments, descriptors=descriptors, threads=threads)
    return Reading(host, [Held()], frozenset([pid]))


def test_growth_from_pause_to_pause_is_found():
    mib = 1 << 20
    assert trial.grown([reading(mib), reading(9 * mib), reading(9 * mib)]) == []
    assert trial.grown([reading(mib), reading(4 * mib), reading(8 * mib)]) == [
        "memory of the server grew each time: 1.0, 4.0, 8.0 MiB"
    ]
    assert trial.grown([reading(threads=5), reading(threads=6), reading(threads=7)]) == [
        "threads of the server grew each time: [5, 6, 7]"
    ]
    assert trial.grown([reading(descriptors=5), reading(descriptors=6), reading(descriptors=6)]) == [
        "descriptors of the server: [5, 6, 6]"
    ]
    assert trial.grown([reading(), reading(), reading(segments=4096)]) == [
        "0.00 MiB of segments are in use after the last response"
    ]
    assert trial.grown([reading(pid=1), reading(pid=1), reading(pid=2)]) == ["the processes changed: [1], then [2]"]


def test_requests_without_an_answer_are_missed():
    account = Account(sent=3, answered=1, given_up=1)
    account.settle()
    assert account.violations == ["1 of 3 requests were neither answered nor cancelled"]


def test_errors_in_a_log_are_found():
    assert trial.judge_log('I "fine"\nE "cannot handle a message"\n') == ['E "cannot handle a message"']
