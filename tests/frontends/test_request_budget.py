"""Which bodies are read, stopped and refused: the budget as pure logic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.frontends.request_budget import Charge, RequestBudget

LIMIT = 8 << 20
SOFT = 7 << 20
MIB = 1 << 20


class Body:
    """A body that records what the budget tells it."""

    def __init__(self, budget: RequestBudget) -> None:
        self.events: list[str] = []
        self.charge: Charge = budget.open(self)
        self.is_stopped = False

    def receive(self, size: int) -> bool:
        self.is_stopped = not self.charge.add(size)
        return not self.is_stopped

    def resume_receiving(self) -> None:
        self.is_stopped = False
        self.events.append("resumed")

    def refuse(self, reason: str) -> None:
        self.is_stopped = False
        self.events.append(reason)
        self.charge.release()


def bodies(count: int) -> tuple[RequestBudget, list[Body]]:
    budget = RequestBudget(LIMIT)
    return budget, [Body(budget) for _ in range(count)]


def test_announced_bodies_count_nothing():
    budget, waiting = bodies(1000)

    assert budget.in_use == 0
    assert waiting[0].charge.room == LIMIT


def test_bodies_stop_at_the_soft_limit_and_continue_in_order_when_memory_is_freed():
    budget, (complete, first, second) = bodies(3)
    complete.receive(5 * MIB)
    complete.charge.complete()
    assert first.receive(2 * MIB)
    assert not second.receive(MIB // 2)
    assert not first.receive(0), "no more than the room is read, but a client may send a byte"
    assert budget.stopped_count == 2
    complete.charge.release()
    assert (first.events, second.events) == (["resumed"], ["resumed"])
    assert budget.in_use == 2 * MIB + MIB // 2


def test_incomplete_bodies_that_fill_the_budget_lose_the_largest_after_a_second():
    budget, [large, small, waiting] = bodies(3)
    large.receive(5 * MIB)
    small.receive(2 * MIB - 1)
    assert not waiting.receive(2)
    assert budget.on_tick()
    assert large.events == []
    assert not budget.on_tick()
    assert large.events == [
        (
            "cannot receive the request: requests in flight use all of the 8388608 bytes that they may use together; "
            "try again later, send smaller requests, or set --memory-limit-requests"
        )
    ]
    assert waiting.events == ["resumed"]
    assert budget.refused == 1
    assert budget.in_use == 2 * MIB + 1


def test_bodies_wait_longer_while_complete_requests_hold_the_memory():
    budget, [complete, waiting] = bodies(2)
    complete.receive(SOFT)
    complete.charge.complete()
    assert not waiting.receive(1)
    ticks = 1
    while budget.on_tick():
        ticks += 1
    assert ticks == 20
    assert len(waiting.events) == 1
    assert complete.events == []


def test_what_arrives_beyond_the_limit_is_paid_by_the_largest_incomplete_body():
    budget, [large, small] = bodies(2)
    large.receive(5 * MIB)
    small.receive(2 * MIB)
    small.receive(MIB)
    assert large.events == []
    assert small.receive(1), "the other made room"
    assert len(large.events) == 1
    assert budget.in_use == 3 * MIB + 1


def test_a_body_larger_than_the_rest_is_refused_within_its_own_read():
    budget, [body] = bodies(1)
    assert body.receive(LIMIT + 1), "nothing is left to stop"
    assert body.events == [
        (
            "cannot receive the request: it exceeds the 8388608 bytes that all requests in flight may use together; "
            "send smaller requests, or set --memory-limit-requests"
        )
    ]
    assert budget.in_use == 0


def test_body_that_is_alone_is_read_up_to_the_limit():
    budget, [body, small] = bodies(2)
    assert small.receive(MIB // 2 - 1)
    assert body.receive(SOFT)
    assert body.charge.room == LIMIT - budget.in_use
    assert not small.receive(1), "it waits for the large one"
    while body.charge.size < LIMIT - MIB // 2:
        assert body.receive(MIB // 8)
        assert budget.on_tick(), "the large one is read: nothing is refused"
    body.charge.complete()
    body.charge.release()
    assert (body.events, small.events, budget.refused) == ([], ["resumed"], 0)


def test_body_continues_beyond_the_soft_limit_once_it_is_alone():
    budget, [complete, body, other] = bodies(3)
    assert complete.receive(MIB // 2 + 2)
    assert body.receive(SOFT - MIB // 2 - 2)
    complete.charge.complete()
    assert not body.receive(MIB // 2)
    assert not other.receive(1)
    complete.charge.release()
    assert (body.events, other.events) == (["resumed"], ["resumed"])
    body.is_stopped = other.is_stopped = False
    assert body.receive(MIB), "it holds 7.5 of 8 MiB"
    assert not other.receive(1)
    assert budget.on_tick()


def test_large_body_of_which_nothing_more_arrives_is_refused():
    budget, [body, small] = bodies(2)
    assert body.receive(SOFT + 1)
    assert not small.receive(1)
    assert budget.on_tick(), "it has grown since the tick before"
    assert not budget.on_tick()
    assert (len(body.events), small.events) == (1, ["resumed"])


def test_a_complete_body_is_not_refused_and_releases_once():
    budget, [body] = bodies(1)
    body.receive(3 * MIB)
    body.charge.complete()
    assert repr(body.charge) == "<Charge 3145728 bytes, complete>"
    body.charge.release()
    body.charge.release()
    assert budget.in_use == 0
    assert budget.take_peak() == 3 * MIB
    assert budget.take_peak() == 0


def test_ticks_are_asked_for_when_a_body_stops():
    asked = []
    budget = RequestBudget(LIMIT, lambda: asked.append(1))
    body, other = Body(budget), Body(budget)
    body.receive(SOFT)
    assert asked == []
    other.receive(1)
    assert asked == [1]


actions = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["receive", "complete", "release", "tick"]), st.integers(0, 3 * MIB)),
    max_size=60,
)


@given(actions)
def test_whatever_happens_the_limit_holds_and_nothing_is_lost(steps):
    budget, open_bodies = bodies(5)
    for index, action, size in steps:
        body = open_bodies[index]
        if action == "tick":
            budget.on_tick()
        elif action == "release":
            body.charge.release()
            open_bodies[index] = Body(budget)
        elif action == "complete":
            body.charge.complete()
        elif not body.is_stopped and body.charge in budget._incomplete:
            body.receive(min(size, body.charge.room))
        assert budget.in_use == sum(one.charge.size for one in open_bodies)
        assert budget.in_use <= LIMIT
        assert budget.stopped_count == 0 or budget.in_use >= SOFT
    for body in open_bodies:
        body.charge.release()
    assert budget.in_use == budget.stopped_count == 0


@pytest.mark.parametrize("count", [1, 7])
def test_stuck_bodies_complete_one_after_the_other(count):
    """Each needs most of the budget: all but one are refused, and that one completes."""
    budget, open_bodies = bodies(count)
    missing = dict.fromkeys(open_bodies, 6 * MIB)
    while any(missing.values()):
        for body in open_bodies:
            if missing[body] and len(body.events) and body.events[-1] != "resumed":
                missing[body] = 0
            elif missing[body] and not body.is_stopped:
                size = min(missing[body], MIB // 8, body.charge.room)
                missing[body] -= size
                body.receive(size)
        budget.on_tick()
    refused = [body for body in open_bodies if body.events and body.events[-1] != "resumed"]
    assert len(refused) == count - 1
