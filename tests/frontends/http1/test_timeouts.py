"""Time limits of connections: what counts as progress, and when sweeps take place."""

from __future__ import annotations

import pytest
from fakes.connections import Loop

from naiad.core.turns import LoopTurns
from naiad.frontends.http1.timeouts import HttpTimeouts, Phase
from naiad.frontends.timeouts import ProgressWatch, ReadingWatch, TimeoutSweep


class Connection:
    def __init__(self) -> None:
        self.checked: list[float] = []

    def check_time(self, now: float) -> None:
        self.checked.append(now)


def sweep_of(connections: list[Connection], seconds: float = 1) -> tuple[Loop, TimeoutSweep]:
    loop = Loop()
    return loop, TimeoutSweep(loop, LoopTurns(loop), connections, Connection.check_time, seconds)


def test_time_without_progress_adds_up():
    watch = ProgressWatch()
    assert watch.elapsed(Phase.BODY, 5, 100) == 0
    assert watch.elapsed(Phase.BODY, 5, 103) == 3
    assert watch.elapsed(Phase.BODY, 5, 107) == 7


@pytest.mark.parametrize(("phase", "progress"), [(Phase.BODY, 6), (Phase.HEADER, 5)], ids=["progress", "phase"])
def test_progress_and_a_new_phase_restart_the_time(phase, progress):
    watch = ProgressWatch()
    watch.elapsed(Phase.BODY, 5, 100)
    assert watch.elapsed(phase, progress, 103) == 0
    assert watch.elapsed(phase, progress, 104) == 1


@pytest.mark.parametrize(
    ("reads", "waiting", "ended_at"),
    [
        ([0] * 20, 1_000_000, 6),
        ([0] * 20, 10, 6),
        ([0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000], 1_000_000, 6),
        ([204_800 * number for number in range(20)], 1_000_000, None),
        ([21_000 * number for number in range(20)], 1_000_000, None),
        ([0, 122_880] + [122_880] * 20, 1_000_000, 7),
        (list(range(20)), 3, None),
    ],
    ids=["nothing", "nothing of little", "too little", "fast", "at the least rate", "then nothing", "little of little"],
)
def test_a_client_has_to_read_at_a_rate_or_all_that_waits(reads, waiting, ended_at):
    """Each number is what the client had read at the next look, ten seconds after the last one."""
    watch = ReadingWatch()
    slow = [watch.is_too_slow(read, waiting, number * 10, 60) for number, read in enumerate(reads)]
    assert (slow.index(True) if True in slow else None) == ended_at


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 5),
        ({"header": 10}, 1),
        ({"send": 0.2}, 0.05),
        ({"header": 0, "body": 0, "keepalive": 20, "send": 0}, 2),
        ({"header": 0, "body": 0, "keepalive": 0, "send": 0}, 0),
    ],
)
def test_sweeps_are_as_frequent_as_the_shortest_limit_needs(limits, seconds):
    assert HttpTimeouts(**limits).sweep_seconds == pytest.approx(seconds)


def test_a_request_that_is_being_answered_has_no_limit():
    assert HttpTimeouts().of(Phase.WORKING) == 0


def test_the_default_for_idle_connections_is_longer_than_that_of_load_balancers():
    assert HttpTimeouts().of(Phase.IDLE) > 4000


def test_connections_are_checked_now_and_then_while_there_are_any():
    connections = [Connection()]
    loop, sweep = sweep_of(connections)
    sweep.start()
    sweep.start()
    loop.advance(1)
    loop.advance(1)
    assert connections[0].checked == [1, 2]
    connections.clear()
    loop.advance(1)
    assert loop.timers == [], "an idle server is not woken"
    sweep.start()
    assert loop.timers


def test_many_connections_are_checked_in_several_turns():
    connections = [Connection() for _ in range(600)]
    loop, sweep = sweep_of(connections)
    sweep.start()
    loop.now = 1
    (_, callback) = loop.timers.pop()
    callback()
    assert sum(len(connection.checked) for connection in connections) == 256
    loop.run_ready()
    assert all(connection.checked == [1] for connection in connections)


def test_without_limits_nothing_is_checked():
    loop, sweep = sweep_of([Connection()], 0)
    sweep.start()
    assert loop.timers == []


def test_a_stopped_sweep_checks_nothing():
    connection = Connection()
    loop, sweep = sweep_of([connection])
    sweep.start()
    sweep.stop()
    loop.advance(2)
    assert connection.checked == []
