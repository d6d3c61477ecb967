"""Responses in the order of their requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naiad.engine.scheduling.response_order import ResponseOrder


def test_a_later_request_waits_for_the_earlier_one():
    order: ResponseOrder[int, str] = ResponseOrder()
    for key in (1, 2, 3):
        order.begin(key)
    assert order.respond(2, "b", final=True) == []
    assert order.respond(3, "c1", final=False) == []
    assert order.respond(1, "a", final=True) == [(1, "a", True), (2, "b", True), (3, "c1", False)]
    assert order.respond(3, "c2", final=True) == [(3, "c2", True)]
    assert len(order) == 0


def test_the_first_request_streams():
    order: ResponseOrder[int, str] = ResponseOrder()
    order.begin(1)
    assert order.respond(1, "a", final=False) == [(1, "a", False)]


def test_a_request_that_was_put_back_keeps_its_place():
    order: ResponseOrder[int, str] = ResponseOrder()
    order.begin(1)
    order.begin(2)
    order.begin(1)
    assert order.respond(2, "b", final=True) == []
    assert order.respond(1, "a", final=True) == [(1, "a", True), (2, "b", True)]


def test_a_forgotten_request_does_not_block_others():
    order: ResponseOrder[int, str] = ResponseOrder()
    order.begin(1)
    order.begin(2)
    order.respond(2, "b", final=True)
    assert order.forget(1) == [(2, "b", True)]
    assert order.forget(1) == []


def test_no_response_leaves_twice_when_another_request_is_forgotten():
    order: ResponseOrder[int, str] = ResponseOrder()
    for key in (1, 2, 3):
        order.begin(key)
    order.respond(2, "b", final=False)
    assert order.respond(1, "a", final=True) == [(1, "a", True), (2, "b", False)]
    assert order.forget(3) == []


def test_a_request_that_never_began_is_answered_at_once():
    order: ResponseOrder[int, str] = ResponseOrder()
    order.begin(1)
    assert order.respond(2, "refused", final=True) == [(2, "refused", True)]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_order_of_answers_leaves_in_the_order_of_requests(counts, random):
    order: ResponseOrder[int, int] = ResponseOrder()
    answers = [key for key, number in enumerate(counts) for _ in range(number)]
    random.shuffle(answers)
    for key in range(len(counts)):
        order.begin(key)
    seen = [0] * len(counts)
    sent = []
    for key in answers:
        seen[key] += 1
        sent += order.respond(key, seen[key], final=seen[key] == counts[key])
    expected = [(key, index + 1, index + 1 == number) for key, number in enumerate(counts) for index in range(number)]
    assert sent == expected
    assert len(order) == 0
