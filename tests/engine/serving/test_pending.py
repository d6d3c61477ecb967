"""One request in flight: what it takes from its request or its source, and when its guest gets credit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.guests import FakeGuest, output, request

from naiad.engine.serving.pending import ForwardedRequest, PendingRequest
from naiad.protocol.inference import SEQUENCE_START, InferResponse
from naiad.protocol.request_plan import CheckedLayout

LAYOUT = CheckedLayout(generation=0, batch_size=3, is_repeatable=True, packed=None)


def pending(**more: Any) -> PendingRequest:
    return PendingRequest(7, request(**more), SimpleNamespace(), LAYOUT)


def test_schedulers_see_the_fields_of_the_request():
    made = pending(priority=2, timeout_us=5, correlation_id="c", flags=SEQUENCE_START, request_id="9")
    assert (made.priority, made.timeout_us, made.correlation_id, made.flags) == (2, 5, "c", SEQUENCE_START)
    assert made.prefix == "[request id: 9] "
    assert (made.key, made.batch_size, made.packed) == (7, 3, None)
    assert not (made.is_queued)
    assert not (made.is_cancelled)
    assert not (made.drops_responses)
    assert made.worker is made.state is made.unsent is made.rejection is None


def test_a_forwarded_request_is_made_when_it_is_needed_and_once():
    made = []

    class Source:
        def request_of(self, forwarded: ForwardedRequest) -> Any:
            made.append(forwarded)
            return request(priority=4)

        def sink_of(self, number: int) -> Any:
            made.append(number)
            return object()

    forwarded = ForwardedRequest(Source(), 5, b"", b"")
    found = PendingRequest(1, None, None, LAYOUT, forwarded)
    assert made == []
    assert found.priority == 4
    assert found.request is found.request
    assert found.sink is found.sink
    assert made == [forwarded, 5]
    other = found.sink = object()
    assert found.sink is other


class Stream:
    """A request whose guest streams."""

    def __init__(self) -> None:
        self.pending = pending()
        self.guest = FakeGuest()
        self.pending.worker = self.guest

    def send(self, count: int, size: int = 8) -> None:
        """The guest sends responses."""
        for _ in range(count):
            response = InferResponse("m", 1, outputs=output(bytes(size)))
            self.pending.on_response_queued(response)


@pytest.fixture
def stream():
    return Stream()


def test_a_guest_gets_credit_for_many_responses_at_once(stream):
    stream.send(600)
    for _ in range(255):
        stream.pending.on_responses_sent(1)
    assert stream.guest.credits == []
    stream.pending.on_responses_sent(1)
    assert stream.guest.credits == [(7, 256)]
    stream.pending.on_responses_sent(255)
    assert len(stream.guest.credits) == 1
    stream.pending.on_responses_sent(45)
    assert stream.guest.credits == [(7, 256), (7, 300)]


def test_a_guest_gets_credit_for_many_bytes(stream):
    stream.send(3, size=(1 << 20) - 1)
    stream.send(1, size=2)
    stream.pending.on_responses_sent(2)
    assert stream.guest.credits == []
    stream.pending.on_responses_sent(1)
    assert stream.guest.credits == [(7, 3)]
    stream.pending.on_responses_sent(1)
    assert len(stream.guest.credits) == 1


def test_bytes_at_the_limit_are_worth_a_message(stream):
    stream.send(2, size=1 << 20)
    stream.pending.on_responses_sent(1)
    assert stream.guest.credits == []
    stream.pending.on_responses_sent(1)
    assert stream.guest.credits == [(7, 2)]


def test_all_outputs_of_a_response_count(stream):
    response = InferResponse("m", 1, outputs=[*output(bytes(1 << 20)), *output(bytes(1 << 20))])
    stream.pending.on_response_queued(response)
    stream.pending.on_responses_sent(1)
    assert stream.guest.credits == [(7, 1)]


def test_no_more_responses_are_counted_as_sent_than_there_were(stream):
    stream.send(256)
    stream.pending.on_responses_sent(1000)
    assert stream.guest.credits == [(7, 256)]
    stream.pending.on_responses_sent(1000)
    assert len(stream.guest.credits) == 1


def test_dropped_responses_count_as_sent(stream):
    stream.pending.on_dropped()
    stream.send(300)
    stream.pending.on_dropped()
    assert stream.guest.credits == [(7, 300)]


def test_there_is_no_credit_without_responses_or_without_a_guest(stream):
    stream.pending.on_responses_sent(300)
    stream.send(300)
    stream.pending.worker = None
    stream.pending.on_responses_sent(300)
    assert stream.guest.credits == []
