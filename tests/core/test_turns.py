"""Connections that used up their share of a turn of the loop are resumed in order, and never keep the loop for long."""

from __future__ import annotations

from time import perf_counter

import pytest
from fakes.connections import Loop

from naiad.core.turns import TURN_SECONDS, LoopTurns


def test_deferred_connections_are_resumed_once_each_in_their_order():
    loop = Loop()
    turns = LoopTurns(loop)
    resumed = []
    for name in "abc":
        turns.defer(lambda name=name: resumed.append(name))
    assert len(loop.ready) == 1
    loop.run_turn()
    assert resumed == ["a", "b", "c"]
    assert not loop.ready


def test_a_connection_that_is_deferred_again_waits_for_the_next_turn():
    loop = Loop()
    turns = LoopTurns(loop)
    resumed = []

    def resume() -> None:
        resumed.append(len(resumed))
        if len(resumed) < 3:
            turns.defer(resume)

    turns.defer(resume)
    for count in (1, 2, 3):
        loop.run_turn()
        assert len(resumed) == count
    assert not loop.ready


def test_a_turn_ends_when_its_time_is_used_up_and_the_rest_comes_first_in_the_next():
    loop = Loop()
    turns = LoopTurns(loop)
    resumed = []

    def resume(name: str) -> None:
        resumed.append(name)
        end = perf_counter() + TURN_SECONDS
        while perf_counter() < end:
            pass

    for name in "abc":
        turns.defer(lambda name=name: resume(name))
    for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
        loop.run_turn()
        assert resumed == expected


def test_a_connection_that_fails_does_not_strand_the_others():
    loop = Loop()
    turns = LoopTurns(loop)
    resumed = []
    turns.defer(lambda: 1 // 0)
    turns.defer(lambda: resumed.append("b"))
    with pytest.raises(ZeroDivisionError):
        loop.run_turn()
    loop.run_turn()
    assert resumed == ["b"]
