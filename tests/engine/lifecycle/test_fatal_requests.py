"""Which requests are refused because they end guest after guest."""

from __future__ import annotations

from naiad.engine.lifecycle.fatal_requests import FatalRequests, Refusal


def exits(requests: FatalRequests, *digests: str, at: float) -> frozenset[float]:
    return requests.on_exit(digests, f"the exit at {at:g}", at)


def test_a_request_in_flight_at_three_exits_is_refused_for_a_while():
    requests = FatalRequests()
    assert [exits(requests, "a", at=now) for now in (1, 2)] == [frozenset()] * 2
    assert requests.refusal("a", 2.5) is None
    assert exits(requests, "a", at=3) == {1, 2, 3}
    assert requests.refusal("a", 103) == Refusal(3, "the exit at 3", 500)
    assert requests.refusal("b", 103) is None
    assert requests.refusal("a", 603) is None


def test_all_present_refusals_are_listed():
    requests = FatalRequests()
    for now in (1, 2, 3):
        exits(requests, "a", at=now)
    exits(requests, "b", at=4)
    assert requests.refusals(103) == [Refusal(3, "the exit at 3", 500)]
    assert requests.refusals(603) == []


def test_a_request_that_was_refused_is_refused_again_after_one_more_exit():
    requests = FatalRequests()
    for now in (1, 2, 3):
        exits(requests, "a", at=now)
    assert exits(requests, "a", at=700) == {1, 2, 3, 700}
    assert requests.refusal("a", 701) == Refusal(4, "the exit at 700", 599)


def test_a_request_that_is_answered_in_between_is_not_to_blame():
    requests = FatalRequests()
    for now in (1, 2):
        exits(requests, "a", "probe", at=now)
        requests.on_success("probe")
    assert exits(requests, "a", "probe", at=3) == {1, 2, 3}
    assert requests.refusal("probe", 4) is None
    assert requests.is_suspect("probe")


def test_different_requests_are_not_to_blame():
    requests = FatalRequests()
    assert not any(exits(requests, str(now), at=now) for now in range(20))
    assert not any(requests.refusal(str(now), 20) for now in range(20))


def test_suspects_are_forgotten_and_few():
    requests = FatalRequests()
    exits(requests, "a", at=0)
    requests.forget_old(599)
    assert requests
    requests.forget_old(600)
    assert not requests
    for now in range(1000):
        exits(requests, str(now), at=1)
    assert not requests.is_suspect("0")
    assert requests.is_suspect("999")
