"""What the backend decides without a clock, a socket or chance of its own: breaker, choice, retry, chain, limits."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naiad_remote import chain
from naiad_remote.breaker import Breaker, BreakerState
from naiad_remote.caller import time_limit
from naiad_remote.errors import CallError, Cause, may_retry
from naiad_remote.grpc_target import classify_unavailable, shorten
from naiad_remote.router import Router, choose, choose_for_sequence

CLOSED, HALF_OPEN, OPEN = BreakerState


# -- the breaker ------------------------------------------------------------------------------------------------


def failed(breaker: Breaker, now: float) -> None:
    breaker.on_failure(now, is_probe=breaker.begin())


def test_a_breaker_opens_after_consecutive_failures_and_admits_one_probe_after_the_pause():
    breaker = Breaker(2, 10)
    failed(breaker, 0)
    assert breaker.can_call(0)
    failed(breaker, 1)

    assert (breaker.state(10.9), breaker.can_call(10.9), breaker.wait_seconds(8)) == (OPEN, False, 3)
    assert (breaker.state(11), breaker.can_call(11)) == (HALF_OPEN, True)
    assert breaker.begin()
    assert (breaker.state(12), breaker.can_call(12)) == (HALF_OPEN, False)


def test_the_probe_of_a_breaker_opens_or_closes_it():
    breaker = Breaker(1, 10)
    failed(breaker, 0)
    failed(breaker, 10)  # the probe
    assert breaker.state(19.9) is OPEN
    breaker.on_success(is_probe=breaker.begin())

    assert (breaker.state(20), breaker.count) == (CLOSED, 0)


def test_after_an_inconclusive_probe_the_next_call_is_the_probe():
    breaker = Breaker(1, 10)
    failed(breaker, 0)
    breaker.on_neutral(is_probe=breaker.begin())

    assert breaker.can_call(10)
    assert breaker.begin()


def test_a_success_between_failures_starts_the_count_again():
    breaker = Breaker(2, 10)
    for now in range(6):
        failed(breaker, now)
        breaker.on_success(is_probe=breaker.begin())

    assert breaker.state(6) is CLOSED


def test_calls_from_before_a_breaker_opened_change_nothing():
    breaker = Breaker(1, 10)
    early = breaker.begin()
    failed(breaker, 0)
    breaker.on_failure(9, is_probe=early)
    assert breaker.can_call(10)
    breaker.on_success(is_probe=early)

    assert breaker.state(5) is OPEN


def test_a_breaker_of_no_failures_never_opens():
    breaker = Breaker(0, 10)
    for now in range(100):
        failed(breaker, now)

    assert breaker.can_call(100)


@given(st.lists(st.sampled_from(["success", "failure", "neutral", "wait"]), max_size=60), st.integers(1, 5))
def test_an_open_breaker_admits_at_most_one_call_at_a_time_and_recovers(events, failures):
    breaker, now = Breaker(failures, 10), 0.0
    for event in events:
        if event == "wait":
            now += 4
        elif breaker.can_call(now):
            was_closed = breaker.state(now) is CLOSED
            is_probe = breaker.begin()
            assert is_probe != was_closed
            if is_probe:
                assert not breaker.can_call(now)
            if event == "success":
                breaker.on_success(is_probe=is_probe)
                assert breaker.state(now) is CLOSED
            elif event == "failure":
                breaker.on_failure(now, is_probe=is_probe)
            else:
                breaker.on_neutral(is_probe=is_probe)

    assert breaker.can_call(now + 10)


# -- the choice of a target -------------------------------------------------------------------------------------


def test_shares_follow_the_weights_exactly():
    counts = Counter(choose([90, 10, 0], [0, 1, 2], (), number / 1000) for number in range(1000))

    assert counts == {0: 900, 1: 100}


def test_tried_and_unadmitted_targets_are_avoided_while_others_exist():
    assert choose([1, 1], [0, 1], {0}, 0.0) == 1
    assert choose([1, 1], [0], {0}, 0.9) == 0
    assert choose([1, 0], [1], (), 0.5) is None
    assert choose([1, 1], [], (), 0.5) is None


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(any),
    st.floats(0, 1, exclude_max=True),
    st.data(),
)
def test_a_choice_is_admitted_and_has_weight(weights, number, data):
    admitted = data.draw(st.sets(st.integers(0, len(weights) - 1)))
    tried = data.draw(st.sets(st.integers(0, len(weights) - 1)))
    found = choose(weights, admitted, tried, number)
    usable = {index for index in admitted if weights[index] > 0}

    assert (found is None) == (not usable)
    if found is not None:
        assert found in (usable - tried or usable)


def test_a_sequence_keeps_its_target_and_sequences_follow_the_weights():
    counts = Counter(choose_for_sequence([3, 0, 1], number) for number in range(4000))

    assert set(counts) == {0, 2}
    assert counts[0] == pytest.approx(3000, rel=0.05)
    assert len({choose_for_sequence([3, 0, 1], "a-text") for _ in range(10)}) == 1


# -- targets with breakers --------------------------------------------------------------------------------------


def router_of(*weights: float, failures: int = 1, near: tuple[int, ...] = ()) -> tuple[Router, list[float]]:
    now = [0.0]
    breakers = [Breaker(failures, 10) for _ in weights]
    names = [f"http://{index}" for index in range(len(weights))]
    return Router(names, weights, breakers, lambda: now[0], random.Random(7).random, near), now


LOST = CallError(Cause.LOST, "cannot call http://0: the connection was lost")


def test_a_router_leaves_out_targets_whose_breaker_is_open_and_says_so_when_none_is_left():
    router, now = router_of(1, 1)
    assert router.on_end(0, LOST, is_probe=False) is OPEN
    assert {router.pick(set())[0] for _ in range(20)} == {1}
    router.on_end(1, CallError(Cause.TIMEOUT, "too late"), is_probe=False)
    assert not router.is_ready()
    now[0] = 4

    with pytest.raises(CallError) as error:
        router.pick(set())
    assert error.value.text == (
        "cannot call a remote model: the circuit breaker of each of its targets is open: http://0 is next called in "
        "6.0 s, after 1 failures, the last: cannot call http://0: the connection was lost; http://1 is next called in "
        "6.0 s, after 1 failures, the last: too late"
    )
    assert (error.value.cause, error.value.code) == (Cause.BLOCKED, "UNAVAILABLE")


def test_a_router_prefers_near_targets_until_they_fail():
    router, now = router_of(1, 1, 1, near=(2,))
    assert {router.pick(set())[0] for _ in range(20)} == {2}
    assert {router.pick({2})[0] for _ in range(20)} == {0, 1}

    router.on_end(2, LOST, is_probe=False)
    assert {router.pick(set())[0] for _ in range(20)} == {0, 1}
    now[0] = 10
    assert router.pick(set()) == (2, True)
    router.on_end(2, None, is_probe=True)
    assert {router.pick(set())[0] for _ in range(20)} == {2}


def test_a_router_probes_one_target_with_one_call():
    router, now = router_of(1, 1)
    for index in (0, 1):
        router.on_end(index, LOST, is_probe=False)
    now[0] = 10

    picked = [router.pick(set()), router.pick(set())]
    assert sorted(picked) == [(0, True), (1, True)]
    with pytest.raises(CallError):
        router.pick(set())
    assert router.on_end(1, None, is_probe=True) is CLOSED
    assert router.pick(set()) == (1, False)


@pytest.mark.parametrize("cause", [Cause.ERROR, Cause.CANCELLED, Cause.REQUEST_TIMEOUT])
def test_failures_that_are_not_the_targets_open_no_breaker(cause):
    router, _ = router_of(1)

    assert router.on_end(0, CallError(cause, ""), is_probe=False) is CLOSED


def test_a_sequence_fails_where_its_target_is_not_called():
    router, _ = router_of(1, 1)
    index, _ = router.pick(set(), sequence=5)
    router.on_end(index, LOST, is_probe=False)

    with pytest.raises(CallError, match=f"http://{index} is next called in 10.0 s"):
        router.pick(set(), sequence=5)
    assert router.pick(set())[0] == 1 - index


# -- retries and limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", Cause)
def test_a_call_is_repeated_only_where_that_is_safe(cause):
    error = CallError(cause, "")
    always = cause in {Cause.CONNECT, Cause.TLS}

    assert may_retry(error, idempotent=False, has_responded=False) == always
    expected = always or cause in {Cause.LOST, Cause.UNAVAILABLE}
    assert may_retry(error, idempotent=True, has_responded=False) == expected
    assert not may_retry(error, idempotent=True, has_responded=True)


def test_the_shorter_time_limit_counts():
    assert time_limit(60, 0) == (60, Cause.TIMEOUT)
    assert time_limit(60, 1_500_000) == (1.5, Cause.REQUEST_TIMEOUT)
    assert time_limit(1, 1_500_000) == (1, Cause.TIMEOUT)
    assert time_limit(0, 0) == (math.inf, Cause.TIMEOUT)


@pytest.mark.parametrize(
    ("details", "is_secure", "cause"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: Connection refused", False, Cause.CONNECT),
        ("DNS resolution failed for nowhere:1", False, Cause.CONNECT),
        ("Socket closed", False, Cause.LOST),
        ("failed to connect to all addresses; Ssl handshake failed: CERTIFICATE_VERIFY_FAILED", True, Cause.TLS),
        ("the model is being unloaded", True, None),
    ],
)
def test_failures_of_grpc_are_distinguished_from_those_of_the_server(details, is_secure, cause):
    assert classify_unavailable(details, is_secure=is_secure) is cause


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection refused",
            "connection refused",
        ),
        ("recvmsg:Connection reset by peer (104)", "connection reset by peer"),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:9: connection attempt timed out",
            "connection attempt timed out",
        ),
        ("DNS resolution failed for nowhere:1: C-ares status", "DNS resolution failed for nowhere:1: C-ares status"),
        ("Socket closed", "Socket closed"),
    ],
)
def test_the_cause_of_a_failure_of_grpc_is_extracted_from_its_text(details, cause):
    assert shorten(details) == cause


# -- chains of calls --------------------------------------------------------------------------------------------


def test_each_call_adds_its_link_to_the_chain():
    first = chain.link("edge-1", "résumé, a", "2")
    received = chain.extend("", first, 8)

    assert received == "edge-1/r%C3%A9sum%C3%A9%2C%20a:2"
    assert chain.extend(received, chain.link("edge-2", "b", "1"), 8) == received + ",edge-2/b:1"


def test_a_chain_that_returns_is_rejected_with_its_links_by_name():
    own = chain.link("edge-1", "a b", "1")

    with pytest.raises(CallError) as error:
        chain.extend(f"front/x:1, {own},edge-2/c:1", own, 8)
    assert error.value.text == (
        "cannot call the remote model: the chain of calls returns to its caller: edge-1/a b:1 -> edge-2/c:1 -> "
        "edge-1/a b:1; call a model that does not call this one"
    )
    assert error.value.code == "INVALID_ARG"


def test_a_chain_has_a_limit():
    with pytest.raises(CallError, match="more than 2 links: a/m:1 -> b/m:1 -> c/m:1; shorten it, or raise 'max_chain'"):
        chain.extend("a/m:1,b/m:1", "c/m:1", 2)
