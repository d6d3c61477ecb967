"""The rules of response senders, with a channel of the test: credit, windows, marks, and senders that are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from naiad_stub import sender as sender_module
from naiad_stub import wire
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.exchange import Batch, ResponseWriter
from naiad_stub.messages import (
    FROM_GUEST,
    REQUEST_PROGRESS,
    CancelRequests,
    Credit,
    Notification,
    unpack,
)
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import HostSenders, InferenceResponseSender

from .hosts import Entry, FakeChannel, Responses, batch_of

FINAL = 1
ENDED = wire.FINAL | wire.EMPTY
WINDOW = 4
OVERHEAD = 1024


class Guest:
    """The senders of one model whose windows are small."""

    def __init__(self, *, decoupled: bool = True) -> None:
        self.channel = FakeChannel()
        self.logged: list[str] = []
        writer = ResponseWriter(None, (), pytest.fail)
        self.senders = HostSenders(self.channel, writer, "m", self.logged.append, decoupled=decoupled)

    def running(self, *keys: int, number: int = 1) -> tuple[Batch, list[InferenceResponseSender]]:
        """A batch that `execute` works on, and the senders of its requests."""
        batch = batch_of(*keys, number=number)
        self.senders.on_execute_start(batch)
        return batch, [self.senders.sender_of(request) for request in batch.requests]

    def sent(self) -> list[tuple[int, int]]:
        """Keys and flags of the responses so far."""
        return [(entry.key, entry.flags) for each in self.channel.responses() for entry in each.entries]


@pytest.fixture
def guest(monkeypatch):
    monkeypatch.setattr(sender_module, "WINDOW_RESPONSES", WINDOW)
    return Guest()


def response() -> InferenceResponse:
    return InferenceResponse([])


def test_responses_are_posted_one_by_one_and_name_their_batch(guest):
    _, [sender] = guest.running(7, number=3)
    sender.send(response())
    sender.send(response(), FINAL)
    assert guest.channel.ways == ["post", "post"]
    assert guest.channel.responses() == [
        Responses(3, 0, [Entry(7, 0, "", 0)]),
        Responses(3, 0, [Entry(7, wire.FINAL, "", 0)]),
    ]


@pytest.mark.parametrize("decoupled", [False, True])
def test_nothing_is_sent_after_the_last_response(decoupled):
    guest = Guest(decoupled=decoupled)
    _, [sender] = guest.running(7)
    sender.send(response(), FINAL)
    text = "Unable to send response. "
    text += (
        "Response sender has been closed." if decoupled else "Non-decoupled model cannot send more than one response."
    )
    with pytest.raises(TritonModelException) as caught:
        sender.send(response())
    assert str(caught.value) == text
    with pytest.raises(TritonModelException, match="Response sender has been closed"):
        sender.send(flags=FINAL)
    assert len(guest.sent()) == 1


def test_a_model_in_default_mode_sends_one_response_and_then_its_end():
    guest = Guest(decoupled=False)
    _, [sender] = guest.running(7)
    with pytest.raises(TritonModelException) as caught:
        sender.send(flags=FINAL)
    assert str(caught.value) == (
        "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
    )
    sender.send(response())
    with pytest.raises(TritonModelException, match="cannot send more than one response"):
        sender.send(response(), FINAL)
    sender.send(flags=FINAL)
    assert guest.sent() == [(7, 0), (7, ENDED)]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (("x",), TypeError, "send takes an InferenceResponse, got str"),
        ((response(), 2), TritonModelException, "Unable to send response. Unsupported flag provided."),
        ((response(), "1"), TypeError, "flags must be an int, got str"),
        (
            (None, 0),
            TritonModelException,
            "Inference Response object must be provided when the response flags is set to zero.",
        ),
    ],
)
def test_wrong_arguments_are_refused(guest, arguments, kind, text):
    _, [sender] = guest.running(7)
    with pytest.raises(kind) as caught:
        sender.send(*arguments)
    assert str(caught.value) == text
    sender.send(flags=FINAL)


def test_flags_may_be_any_integer(guest):
    import numpy as np

    _, [sender] = guest.running(7)
    sender.send(response(), np.int64(0))
    sender.send(response(), np.int64(1))
    assert guest.sent() == [(7, 0), (7, wire.FINAL)]


def test_a_request_that_the_model_made_has_no_responses(guest):
    sender = InferenceResponseSender._of(guest.senders, None)
    with pytest.raises(TritonModelException, match="has no reference to the decoupled state of the model"):
        sender.send(response())
    assert not sender.is_cancelled()
    sender.mark_queued()
    sender.mark_started(5)
    assert guest.channel.sent == []


def test_a_sender_beyond_its_window_waits_for_credit(guest):
    _, [sender] = guest.running(7)
    waits = []

    def credit() -> None:
        waits.append(len(guest.sent()))
        guest.channel.receive_from_host(Credit(7, 1))

    guest.channel.on_wait = credit
    for _ in range(WINDOW):
        sender.send(response())
    assert waits == []
    assert guest.channel.polls == 0
    sender.send(response())
    sender.send(response())
    assert waits == [WINDOW, 1]
    sender.send(flags=FINAL)
    assert waits == [WINDOW, 1, 1]
    assert guest.sent() == [(7, ENDED)]


def test_credit_that_has_arrived_is_found_without_waiting(guest):
    _, [sender] = guest.running(7)
    for _ in range(WINDOW):
        sender.send(response())
    guest.channel.on_poll = lambda: guest.channel.receive_from_host(Credit(7, WINDOW))
    for _ in range(WINDOW):
        sender.send(response())
    assert guest.channel.polls == 1
    sender.send(flags=FINAL)


def test_more_credit_than_responses_opens_no_larger_window(guest):
    _, [sender] = guest.running(7)
    sender.send(response())
    guest.channel.receive_from_host(Credit(7, 100))
    for _ in range(WINDOW):
        sender.send(response())
    with pytest.raises(AssertionError, match="it would wait for ever"):
        sender.send(response())
    guest.channel.receive_from_host(Credit(7, 1))
    sender.send(flags=FINAL)


def test_the_window_has_a_limit_of_bytes_as_well(guest, monkeypatch):
    monkeypatch.setattr(sender_module, "WINDOW_BYTES", 2 * OVERHEAD)
    _, [sender] = guest.running(7)
    sender.send(response())
    sender.send(response())
    with pytest.raises(AssertionError, match="it would wait for ever"):
        sender.send(response())
    guest.channel.receive_from_host(Credit(7, 1))
    sender.send(response())
    guest.channel.receive_from_host(Credit(7, 2))
    sender.send(response())
    sender.send(response())
    guest.channel.receive_from_host(Credit(7, 2))
    sender.send(flags=FINAL)


def test_the_bytes_of_outputs_count(guest, monkeypatch):
    monkeypatch.setattr(sender_module, "WINDOW_BYTES", 2 * OVERHEAD + 100)
    write = guest.senders.writer.response
    monkeypatch.setattr(guest.senders.writer, "response", lambda *each: (write(*each)[0], 100))
    _, [sender] = guest.running(7)
    sender.send(response())
    sender.send(response())
    with pytest.raises(AssertionError, match="it would wait for ever"):
        sender.send(response())
    guest.channel.receive_from_host(Credit(7, 2))
    sender.send(flags=FINAL)


def test_a_model_in_default_mode_needs_no_credit(monkeypatch):
    monkeypatch.setattr(sender_module, "WINDOW_RESPONSES", 1)
    guest = Guest(decoupled=False)
    _, [sender] = guest.running(7)
    sender.send(response())
    sender.send(flags=FINAL)
    assert len(guest.sent()) == 2


def on_loop(function: Callable[[], Any]) -> Any:
    async def call() -> Any:
        return function()

    return asyncio.run(call())


@pytest.mark.parametrize("read", [0, WINDOW])
def test_an_event_loop_is_not_held_up_but_gets_an_error_in_the_end(guest, monkeypatch, read):
    """What the client has read before does not count."""
    monkeypatch.setattr(sender_module, "LIMIT_BYTES", (WINDOW + 2) * OVERHEAD)
    _, [sender] = guest.running(7)
    for _ in range(read):
        sender.send(response())
    guest.channel.receive_from_host(Credit(7, read))

    def send_all() -> None:
        for _ in range(WINDOW + 2):
            sender.send(response())
        with pytest.raises(TritonModelException) as caught:
            sender.send(response())
        assert str(caught.value) == (
            f"Unable to send response. The client has not read {WINDOW + 2} earlier responses "
            f"({(WINDOW + 2) * OVERHEAD} bytes with what keeping them costs): it reads too slowly, or not at all."
        )

    on_loop(send_all)
    assert len(guest.sent()) == read + WINDOW + 2
    guest.channel.receive_from_host(Credit(7, WINDOW + 2))
    sender.send(flags=FINAL)


def test_of_a_cancelled_request_only_the_end_is_sent_beyond_the_window(guest):
    _, [sender] = guest.running(7)
    for _ in range(WINDOW):
        sender.send(response())
    assert not sender.is_cancelled()
    guest.channel.on_poll = lambda: guest.channel.receive_from_host(CancelRequests([7]))
    sender.send(response())
    assert sender.is_cancelled()
    assert len(guest.sent()) == WINDOW
    # A caller that reads on gets no gaps.
    guest.channel.receive_from_host(Credit(7, WINDOW))
    sender.send(response())
    assert guest.sent() == []
    sender.send(response(), FINAL)
    assert guest.sent() == [(7, wire.FINAL)]
    with pytest.raises(TritonModelException, match="has been closed"):
        sender.send(response())


def test_a_thread_that_waits_looks_again_whether_it_may_send(guest):
    """`execute` has failed meanwhile, which has ended the request."""
    batch, [sender] = guest.running(7)
    for _ in range(WINDOW):
        sender.send(response())

    def close() -> None:
        batch.records[0].sender_state.is_closed = True
        guest.channel.receive_from_host(Credit(7, 1))

    guest.channel.on_wait = close
    with pytest.raises(TritonModelException, match="has been closed"):
        sender.send(response())
    assert len(guest.sent()) == WINDOW


def test_a_cancellation_wakes_a_thread_that_waits(guest):
    _, [sender] = guest.running(7)
    for _ in range(WINDOW):
        sender.send(response())
    guest.channel.on_wait = lambda: guest.channel.receive_from_host(CancelRequests([7]))
    sender.send(response())
    sender.send(flags=FINAL)
    assert guest.sent()[-1] == (7, ENDED)


def test_whether_a_request_is_cancelled_is_asked_until_it_is(guest):
    _, [sender, other] = guest.running(7, 8)
    assert not sender.is_cancelled()
    assert guest.channel.polls == 1
    guest.channel.receive_from_host(CancelRequests([7]))
    assert sender.is_cancelled()
    assert guest.channel.polls == 1
    assert not other.is_cancelled()
    sender.send(flags=FINAL)
    other.send(flags=FINAL)


def test_messages_of_unknown_requests_are_ignored(guest):
    guest.channel.receive_from_host(Credit(9, 1))
    batch, [sender] = guest.running(7)
    guest.channel.receive_from_host(Credit(7, 1))  # it has not sent anything
    assert batch.records[0].sender_state is None
    guest.channel.receive_from_host(CancelRequests([7]))
    assert sender.is_cancelled()
    sender.send(flags=FINAL)


def test_cancellations_of_requests_that_never_come_are_forgotten_at_some_time(guest, monkeypatch):
    monkeypatch.setattr(sender_module, "_MAX_EARLY_CANCELS", 3)
    for key in range(4):
        guest.channel.receive_from_host(CancelRequests([key]))
    _, senders = guest.running(0, 1, 2, 3)
    assert [each.is_cancelled() for each in senders] == [False, False, False, True]
    for each in senders:
        each.send(flags=FINAL)


def test_requests_left_to_their_senders_are_found_until_they_end(guest):
    batch, [sender, closed] = guest.running(7, 8)
    closed.send(flags=FINAL)
    record = batch.records[0]
    guest.senders.on_execute_return(batch, batch.records[:])
    for _ in range(WINDOW):
        sender.send(response())
    guest.channel.receive_from_host(Credit(7, 1))
    sender.send(response())
    guest.channel.receive_from_host(CancelRequests([7, 8]))
    assert record.is_cancelled
    assert not batch.records[1].is_cancelled
    sender.send(flags=FINAL)


@pytest.mark.parametrize(
    ("decoupled", "count", "flags", "text"),
    [
        (True, 0, ENDED, ""),
        (True, 2, ENDED, ""),
        (False, 1, ENDED, ""),
        (
            False,
            0,
            wire.FINAL | wire.ERROR,
            (
                "Failed to process the request(s) for model 'm', message: execute returned no response for a request and its "
                "response sender was dropped without sending one"
            ),
        ),
    ],
)
def test_a_sender_that_is_dropped_ends_its_request(decoupled, count, flags, text):
    guest = Guest(decoupled=decoupled)
    for key in (7, 8):
        batch, [sender] = guest.running(key)
        for _ in range(count):
            sender.send(response())
        guest.senders.on_execute_return(batch, batch.records[:])
        guest.channel.responses()
        batch.requests = batch.records = []
        del sender
        [(number, message_flags, [entry])] = guest.channel.responses()
        assert (number, message_flags) == (1, 0)
        assert entry == Entry(key, flags, text, TritonError.INTERNAL if text else 0)
    assert guest.logged == [
        (
            "'m' dropped a response sender without TRITONSERVER_RESPONSE_COMPLETE_FINAL; the request is ended for it "
            "(told once)"
        )
    ]


def test_a_sender_that_has_ended_its_request_is_dropped_silently(guest):
    batch, [sender] = guest.running(7)
    guest.senders.on_execute_return(batch, batch.records[:])
    sender.send(flags=FINAL)
    batch.requests = batch.records = []
    del sender
    assert guest.sent() == [(7, ENDED)]
    # While `execute` runs, its batch ends it.
    batch, [sender] = guest.running(8)
    sender.send(response())
    guest.senders._running.clear()
    batch.requests = batch.records = []
    del sender
    assert guest.sent() == [(8, 0)]
    assert guest.logged == []


def progress(guest: Guest) -> list[dict[str, str]]:
    """The fields of the reports so far."""
    found, guest.channel.sent = guest.channel.sent, []
    messages = [unpack(FROM_GUEST, kind, payload) for kind, payload in found if kind != wire.Kind.RESPONSES]
    assert all(isinstance(each, Notification) and each.subject == REQUEST_PROGRESS for each in messages)
    return [each.fields for each in messages]


def test_a_model_reports_when_its_requests_wait_and_when_they_are_computed(guest, monkeypatch):
    batch, [sender] = guest.running(7, number=3)
    batch.started = 100
    sender.mark_queued()
    sender.mark_started(250)
    assert progress(guest) == [{"key": "7", "started": "0"}, {"key": "7", "started": "250"}]
    starts = []
    monkeypatch.setattr(
        sender_module, "responses_frame", lambda batch, *_: starts.append((batch.number, batch.started)) or b""
    )
    sender.send(response())
    sender.mark_started(50)  # before `execute` was called
    sender.send(response())
    sender.send(flags=FINAL)
    assert starts == [(3, 250), (3, 250), (3, 250)]
    guest.channel.sent.clear()
    sender.mark_queued()
    assert guest.channel.sent == []


def test_a_request_is_computed_since_now_by_default(guest, monkeypatch):
    class Clock:
        def monotonic_ns(self) -> int:
            return 777

    monkeypatch.setattr(sender_module, "time", Clock())
    _, [sender] = guest.running(7)
    sender.mark_started()
    assert progress(guest) == [{"key": "7", "started": "777"}]
    sender.send(flags=FINAL)


def test_a_sender_has_no_constructor():
    with pytest.raises(TypeError, match="InferenceResponseSender: No constructor defined!"):
        InferenceResponseSender()
