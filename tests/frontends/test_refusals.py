"""Wrong keys, headers and passwords are logged, and answered later and later."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from naiad.frontends import refusals as module
from naiad.frontends.refusals import RefusalLog, Refusals, client_address


@pytest.fixture
def now(monkeypatch):
    """The time, which the test sets."""
    clock = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.time)
    return clock


class Timers:
    """The event loop's timers, as far as `Refusals` uses them."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.cancelled = 0

    def call_later(self, delay, callback):
        self.delays.append(delay)
        self.callback = callback
        return self

    def cancel(self):
        self.cancelled += 1


@pytest.fixture
def timers(monkeypatch):
    timers = Timers()
    monkeypatch.setattr(module.asyncio, "get_running_loop", lambda: timers)
    return timers


def refuse(refusals, address="10.0.0.1"):
    """Whether the response to a wrong key was sent at once."""
    answers = []
    forget = refusals.answer_later("the API key", address, lambda: answers.append(1))
    assert (forget is None) == bool(answers)
    return bool(answers)


def test_the_first_ones_are_answered_at_once_and_further_ones_two_a_second(now, timers):
    refusals = Refusals()
    assert [refuse(refusals) for _ in range(8)] == [True] * 5 + [False] * 3
    assert timers.delays == pytest.approx([0.5, 1.0, 1.5])


def test_another_address_is_not_affected(now, timers):
    refusals = Refusals()
    for _ in range(50):
        refuse(refusals)
    assert all(refuse(refusals, "10.0.0.2") for _ in range(5))


def test_a_delay_is_bounded_and_ends_when_the_client_stops(now, timers):
    refusals = Refusals()
    for _ in range(10_000):
        refuse(refusals)
    assert max(timers.delays) == 10
    now.time += 12.5
    assert [refuse(refusals) for _ in range(6)] == [True] * 5 + [False]


def test_a_network_of_ipv6_is_one_client_and_addresses_are_bounded(now, timers):
    refusals = Refusals()
    assert sum(refuse(refusals, f"2001:db8::{number:x}") for number in range(50)) == 5
    assert sum(refuse(refusals, f"2001:db8:0:{number:x}::1") for number in range(1, 50)) == 49
    for number in range(10_000):
        refuse(refusals, f"host-{number}")
    assert len(refusals._next) == 4096


def test_a_client_that_leaves_is_forgotten_and_a_stop_answers_the_others(now, timers):
    refusals = Refusals()
    for _ in range(5):
        refuse(refusals)
    answers = []
    forget = refusals.answer_later("the API key", "10.0.0.1", lambda: answers.append("left"))
    assert refusals.answer_later("the API key", "10.0.0.1", lambda: answers.append("waits")) is not None
    forget()
    forget()
    refusals.close()
    assert (answers, timers.cancelled) == (["waits"], 2)
    assert refuse(refusals), "no delay after that"


def test_the_log_has_the_address_and_a_line_each_ten_seconds(now, caplog):
    log = RefusalLog()
    with caplog.at_level(logging.WARNING, "naiad.access"):
        for _ in range(1000):
            log.add("a", "refused 10.0.0.1: the API key is wrong")
        log.add("b", "other")
        now.time += 10
        log.add("a", "refused 10.0.0.1: the API key is wrong")
    assert [record.getMessage() for record in caplog.records] == [
        "refused 10.0.0.1: the API key is wrong (1 refused so far)",
        "other (1 refused so far)",
        "refused 10.0.0.1: the API key is wrong (1001 refused so far)",
    ]


@pytest.mark.parametrize(
    ("peer", "address"),
    [(("10.0.0.1", 4), "10.0.0.1"), (("::ffff:10.0.0.1", 4, 0, 0), "10.0.0.1"), ("", ""), (None, "")],
)
def test_addresses_of_ipv4_have_one_form(peer, address):
    transport = SimpleNamespace(get_extra_info=lambda _: peer)
    assert client_address(transport) == address
    assert client_address(None) == ""


def test_answers_come_by_timers_of_the_event_loop():
    async def run():
        refusals = Refusals()
        for _ in range(5):
            refusals.answer_later("x", "", lambda: None)
        answered = asyncio.get_running_loop().create_future()
        refusals.answer_later("x", "", lambda: answered.set_result(True))
        return await answered

    assert asyncio.run(run())
