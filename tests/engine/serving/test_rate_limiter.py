"""Batches that wait for resources, and timers of schedulers, with schedulers and guests of the test."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import SECOND, Clock, turns
from fakes.guests import BATCHED, Answers, FakeGuest, config, launch_spec, request

from naiad.core import clock as clocks
from naiad.core.errors import ConfigError, NaiadError, OutOfMemoryError
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.fifo import FifoScheduler
from naiad.engine.scheduling.interface import Dispatch, Rejection, Row, RowDispatch
from naiad.engine.scheduling.rate_limit import EVERY_DEVICE, ResourceCapacity
from naiad.engine.serving import dispatch
from naiad.engine.serving.dispatch import Dispatcher
from naiad.engine.serving.rate_limiter import RateLimitGate, SharedRateLimiter
from naiad.engine.serving.requests_in_flight import RequestsInFlight
from naiad.engine.serving.warmup import WarmUp
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import SEQUENCE_START, InferRequest, InputTensor
from naiad.protocol.request_plan import CheckedLayout

_keys = itertools.count(1)
LAYOUT = CheckedLayout(generation=0, batch_size=1, is_repeatable=True, packed=None)


def waiting() -> OpenRequest:
    opened = OpenRequest(request(), object())
    opened.key, opened.queued = next(_keys), clocks.monotonic_ns()
    return opened


class Scheduler:
    """A scheduler that decides what the test says.

    Attributes:
        calls: What it was asked.
        following: Actions that `on_finished` returns, once.
    """

    waiting_count = 0
    singly = sequences = None

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.following: list[Any] = []
        self.wakeup: int | None = None
        self.queue: list[OpenRequest] = []

    def add_instance(self, worker: Any, now: int) -> list[Any]:
        self.calls.append(("add", worker, now))
        return []

    def on_finished(self, worker: Any, now: int) -> list[Any]:
        self.calls.append(("finished", worker, now))
        following, self.following = self.following, []
        return following

    def wake(self, now: int) -> list[Any]:
        self.calls.append(("wake", now))
        following, self.following = self.following, []
        return following

    def next_wakeup(self) -> int | None:
        return self.wakeup

    def withdraw(self, item: OpenRequest) -> bool:
        if item in self.queue:
            self.queue.remove(item)
            return True
        return False

    def deadline_of(self, item: OpenRequest, queued: int) -> int | None:
        return None


class Limited:
    """Guests whose instances share one resource."""

    def __init__(self, scheduler: Any = None, *, guests: int = 2, count: int = 1) -> None:
        self.limiter = SharedRateLimiter([ResourceCapacity("R", 1, EVERY_DEVICE)])
        self.scheduler = scheduler or Scheduler()
        self.rejected: list[tuple[OpenRequest, NaiadError]] = []
        text = f'instance_group {{ rate_limiter {{ resources {{ name: "R" count: {count} }} }} }}'
        [group] = config(more=text).message.instance_group
        self.guests: list[Any] = [FakeGuest(launch_spec(f"m_0_{number}")) for number in range(guests)]
        groups = {guest.spec.name: group for guest in self.guests}
        self.gate = RateLimitGate(self.limiter, groups, self.scheduler, lambda *each: self.rejected.append(each))
        self.dispatcher = Dispatcher(
            self.scheduler, itertools.count(1000), pytest.fail, lambda *each: self.rejected.append(each), self.gate
        )
        for guest in self.guests:
            self.dispatcher.add(guest)

    def send(self, guest: int, *items: OpenRequest) -> None:
        """The scheduler decides to send a batch."""
        self.dispatcher.carry_out([Dispatch(self.guests[guest], items)])

    def executed(self) -> list[list[list[int]]]:
        return [guest.executed for guest in self.guests]


@pytest.fixture
def clock(monkeypatch):
    return Clock().install(monkeypatch)


async def test_a_batch_waits_until_the_one_with_the_resource_is_done(clock):
    limited = Limited()
    first, second, third = waiting(), waiting(), waiting()
    limited.send(0, first)
    limited.send(1, second, third)
    assert limited.executed() == [[[first.key]], []]
    assert limited.dispatcher.waiting_count == 2
    limited.gate.on_batch_done(limited.guests[0])
    assert limited.executed() == [[[first.key]], [[second.key, third.key]]]
    assert limited.dispatcher.waiting_count == 0


async def test_a_request_is_withdrawn_from_its_staged_batch(clock):
    limited = Limited()
    first, second, third = waiting(), waiting(), waiting()
    limited.send(0, first)
    limited.send(1, second, third)
    assert limited.dispatcher.withdraw(second)
    assert not limited.dispatcher.withdraw(second)
    assert not limited.dispatcher.withdraw(first)
    limited.gate.on_batch_done(limited.guests[0])
    assert limited.executed()[1] == [[third.key]]


async def test_a_batch_of_which_nothing_is_left_frees_its_guest_and_the_resource(clock):
    limited = Limited()
    first, second, third = waiting(), waiting(), waiting()
    limited.send(0, first)
    limited.send(1, second)
    limited.dispatcher.withdraw(second)
    limited.scheduler.calls.clear()
    limited.scheduler.following = [Dispatch(limited.guests[1], (third,))]
    limited.gate.on_batch_done(limited.guests[0])
    assert limited.scheduler.calls == [("finished", limited.guests[1], clock.monotonic_ns())]
    assert limited.executed()[1] == [[third.key]]


async def test_rows_keep_their_slots_and_those_that_were_withdrawn_are_cancelled(clock):
    limited = Limited()
    first, second, third = waiting(), waiting(), waiting()
    limited.send(0, first)
    rows = tuple(Row(item, 0, 0, (), None) for item in (second, third))
    limited.dispatcher.carry_out([RowDispatch(limited.guests[1], rows)])
    limited.dispatcher.withdraw(second)
    limited.gate.on_batch_done(limited.guests[0])
    assert limited.guests[1].executed == [[second.key, third.key]]
    assert limited.guests[1].cancelled == [second.key]


@pytest.mark.parametrize("problem", [OutOfMemoryError("full"), ValueError("a fault")], ids=["full", "unsendable"])
@pytest.mark.parametrize("strategy", ["oldest { max_candidate_sequences: 4 }", "direct {}"])
async def test_a_row_that_was_withdrawn_is_not_queued_again_where_its_batch_cannot_be_sent(clock, problem, strategy):
    sequences = f"sequence_batching {{ {strategy} }} "
    limited = 'instance_group { name: "g" count: 1 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
    held = config(BATCHED, sequences + limited)
    limiter = SharedRateLimiter([ResourceCapacity("R", 1, EVERY_DEVICE)])
    keys = itertools.count(1)
    tracked = RequestsInFlight(held, 1, keys, WarmUp((), keys), limiter=limiter)
    guest, other = FakeGuest(launch_spec("g"), tracked), FakeGuest(launch_spec("other"))
    [group] = held.message.instance_group
    limiter.register(other, group)
    tracked._gate.groups = {guest.spec.name: group}
    tracked.add_guest(guest)
    asked = []
    for number in range(1, 5):
        inputs = [InputTensor("IN", Datatype.FP32, (1, 2), bytes(8))]
        of_sequence = InferRequest("m", -1, inputs, correlation_id=number, flags=SEQUENCE_START)
        answers = Answers()
        opened = OpenRequest(of_sequence, answers)
        asked.append((opened, answers))
        tracked.start(opened, LAYOUT)
    limiter.stage(other, (SimpleNamespace(on_granted=lambda _: None), None))
    guest.answer()  # the first; the others are the next batch, which waits for the resource
    withdrawn, last = asked[2][0], asked[3][0].key
    withdrawn.cancel()
    execute = guest.execute

    def fail_once(*_: object) -> None:
        guest.execute = execute
        raise problem

    def check(keyed: Any) -> None:
        if keyed[0] == last:
            raise ValueError("a fault")

    guest.execute, guest.check_sendable = fail_once, check
    limiter.on_batch_done(other)
    while guest.batches:
        guest.answer()
    assert [answers.is_ended for _, answers in asked] == [True] * 4
    assert len(tracked) == 0


async def test_the_staged_batches_of_a_guest_that_has_exited_are_given_back(clock):
    limited = Limited(guests=3)
    items = [waiting() for _ in range(4)]
    limited.send(0, items[0])
    limited.send(1, items[1], items[2])
    limited.send(2, items[3])
    limited.dispatcher.withdraw(items[2])
    assert limited.gate.remove(limited.guests[1]) == (items[1],)
    assert limited.gate.remove(limited.guests[1]) == ()
    assert limited.gate.remove(limited.guests[0]) == ()
    assert limited.guests[2].executed == [[items[3].key]]


async def test_a_guest_that_is_retired_finishes_what_it_executes(clock):
    limited = Limited()
    first, second, third = waiting(), waiting(), waiting()
    limited.send(0, first)
    limited.send(0, second)
    limited.send(1, third)
    assert limited.gate.retire(limited.guests[0]) == (second,)
    assert limited.executed() == [[[first.key]], []]
    limited.gate.on_batch_done(limited.guests[0])
    assert limited.executed() == [[[first.key]], [[third.key]]]
    limited.gate.remove(limited.guests[0])
    assert limited.gate.retire(limited.guests[0]) == ()


async def test_closing_gives_all_resources_back(clock):
    limited = Limited()
    limited.send(0, waiting())
    limited.send(1, waiting())
    limited.dispatcher.close()
    assert limited.dispatcher.waiting_count == 0
    assert limited.limiter._staged == {}


async def test_needs_that_can_never_be_granted_are_an_error_of_the_configuration(clock):
    with pytest.raises(ConfigError, match='Resource count for "R" is limited to 1'):
        Limited(count=2)


async def test_an_instance_without_a_group_needs_no_resources(clock):
    limited = Limited(guests=1)
    other: Any = FakeGuest(launch_spec("other"))
    limited.dispatcher.add(other)
    limited.guests.append(other)
    first, second = waiting(), waiting()
    limited.send(0, first)
    limited.send(1, second)
    assert limited.executed() == [[[first.key]], [[second.key]]]


async def test_other_actions_are_carried_out_at_once(clock):
    limited = Limited()
    item, error = waiting(), NaiadError("full")
    limited.dispatcher.carry_out([Rejection(item, error)])
    assert limited.rejected == [(item, error)]


async def test_capacities_are_logged_for_those_who_look(clock, caplog):
    with caplog.at_level(logging.INFO):
        Limited()
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG):
        Limited()
    assert len(caplog.records) == 2


class Timed(Scheduler):
    """A scheduler whose requests have a deadline."""

    def __init__(self, deadline: Callable[[int], int | None]) -> None:
        super().__init__()
        self.deadline = deadline
        self.seen: list[Any] = []

    def deadline_of(self, item: Any, queued: int) -> int | None:
        self.seen.append((item, queued))
        return self.deadline(queued)


async def test_the_queue_timeout_of_a_staged_request_is_kept(clock):
    limited = Limited(Timed(lambda queued: queued + 2 * SECOND))
    first, second, third = waiting(), waiting(), waiting()
    limited.send(0, first)
    limited.send(1, second, third)
    assert (second, second.queued) in limited.scheduler.seen
    limited.dispatcher.withdraw(third)
    await asyncio.sleep(1.9)
    assert limited.rejected == []
    await asyncio.sleep(0.2)
    [(item, error)] = limited.rejected
    assert item is second
    assert error.message == "Request timeout expired"
    assert limited.dispatcher.waiting_count == 0


async def test_a_granted_request_does_not_time_out(clock):
    limited = Limited(Timed(lambda queued: queued + SECOND))
    limited.send(0, waiting())
    await asyncio.sleep(3)
    assert limited.rejected == []


@pytest.mark.parametrize(("deadline", "rejected"), [(None, 0), (0, 1)])
async def test_requests_without_a_timeout_wait_and_those_whose_time_is_over_are_rejected_soon(
    clock, deadline, rejected
):
    limited = Limited(Timed(lambda _: deadline))
    limited.send(0, waiting())
    limited.send(1, waiting())
    await turns()
    await asyncio.sleep(0.001)
    assert len(limited.rejected) == rejected


# -- schedulers that look at the time


class Plain:
    """A dispatcher without resources."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.dispatcher = Dispatcher(self.scheduler, itertools.count(1), pytest.fail, pytest.fail)

    def wakes(self) -> list[float]:
        """The times at which the scheduler was called again, in seconds."""
        return [call[1] / SECOND for call in self.scheduler.calls if call[0] == "wake"]


def test_the_default_scheduler_has_no_timer(clock):
    dispatcher = Dispatcher(FifoScheduler(), itertools.count(1), pytest.fail, pytest.fail)
    assert dispatcher.carry_out == dispatcher._executor.carry_out
    assert dispatcher.waiting_count == 0
    dispatcher.close()


async def test_a_scheduler_is_called_again_when_it_says_or_earlier(clock):
    plain = Plain()
    start = clock.monotonic()
    plain.scheduler.wakeup = clock.monotonic_ns() + 2 * SECOND
    plain.dispatcher.carry_out([])
    plain.scheduler.wakeup = clock.monotonic_ns() + 5 * SECOND
    plain.dispatcher.carry_out([])  # it is called at the earlier time: that does no harm
    await asyncio.sleep(3)
    assert plain.wakes() == [start + 2]
    plain.scheduler.wakeup = clock.monotonic_ns() + SECOND
    plain.dispatcher.carry_out([])
    plain.scheduler.wakeup = None
    await asyncio.sleep(1.5)
    assert plain.wakes() == [start + 2, start + 4]
    await asyncio.sleep(10)
    assert len(plain.wakes()) == 2


async def test_an_earlier_time_replaces_a_later_one(clock):
    plain = Plain()
    start = clock.monotonic()
    for seconds in (5, 1):
        plain.scheduler.wakeup = clock.monotonic_ns() + seconds * SECOND
        plain.dispatcher.carry_out([])
    plain.scheduler.wakeup = None
    await asyncio.sleep(10)
    assert plain.wakes() == [start + 1]


async def test_a_scheduler_that_is_overdue_is_called_in_the_next_turn(clock):
    plain = Plain()
    plain.scheduler.wakeup = clock.monotonic_ns()
    plain.dispatcher.carry_out([])
    assert plain.wakes() == []
    plain.scheduler.wakeup = None
    await turns(1)
    assert len(plain.wakes()) == 1


@pytest.mark.parametrize("way", ["close", "none"])
async def test_a_timer_that_is_not_needed_any_more_is_cancelled(clock, way):
    plain = Plain()
    plain.scheduler.wakeup = clock.monotonic_ns() + SECOND
    plain.dispatcher.carry_out([])
    plain.scheduler.wakeup = None
    if way == "close":
        plain.dispatcher.close()
        plain.dispatcher.close()
    else:
        plain.dispatcher.carry_out([])
    await asyncio.sleep(3)
    assert plain.wakes() == []


async def test_those_behind_a_withdrawn_request_may_have_their_turn(clock):
    plain = Plain()
    item, behind = waiting(), waiting()
    guest: Any = FakeGuest()
    plain.scheduler.queue.append(item)
    plain.scheduler.following = [Dispatch(guest, (behind,))]
    assert plain.dispatcher.withdraw(item)
    assert guest.executed == [[behind.key]]
    assert not plain.dispatcher.withdraw(item)
    assert len(plain.wakes()) == 1


async def test_guests_are_held_until_so_many_requests_wait(clock, monkeypatch):
    """The test aid of the reference."""
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "2")
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "9")
    plain = Plain()
    guests: list[Any] = [FakeGuest(), FakeGuest()]
    for guest in guests:
        plain.dispatcher.add(guest)
    plain.scheduler.waiting_count = 1
    plain.dispatcher.carry_out([])
    assert plain.scheduler.calls == []
    plain.scheduler.waiting_count = 2
    assert plain.dispatcher.waiting_count == 2
    plain.dispatcher.carry_out([])
    assert [call[1] for call in plain.scheduler.calls] == guests
    other: Any = FakeGuest()
    plain.dispatcher.add(other)
    assert plain.scheduler.calls[-1][1] is other


async def test_closing_forgets_guests_that_are_held(clock, monkeypatch):
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "1")
    plain = Plain()
    guest: Any = FakeGuest()
    plain.dispatcher.add(guest)
    plain.dispatcher.close()
    plain.scheduler.waiting_count = 1
    plain.dispatcher.carry_out([])
    assert plain.scheduler.calls == []


@pytest.mark.parametrize(("is_sequential", "count", "held"), [(True, "2", 5), (False, "2", 2), (True, "", 0)])
def test_sequences_add_their_backlog_to_the_hold(monkeypatch, is_sequential, count, held):
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", count)
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "3")
    hold = dispatch._StartHold.from_environment(is_sequential=is_sequential)
    assert hold.is_holding == bool(held)
    if held:
        hold.release(held - 1)
        assert hold.is_holding
        hold.release(held)
        assert not hold.is_holding
