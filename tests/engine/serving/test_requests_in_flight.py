"""Requests of a model version from admission to the last response, with guests and a scheduler of the test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from fakes.clock import SECOND, Clock, turns
from fakes.guests import BATCHED, PLAIN, Answers, FakeGuest, config, exited, launch_spec, output
from naiad_stub import wire

from naiad.core.errors import Code, ModelError, NaiadError, NotReadyError, QueueFullError
from naiad.engine.open_request import ForwardedRequest, OpenRequest
from naiad.engine.scheduling.fifo import FifoScheduler
from naiad.engine.scheduling.rate_limit import EVERY_DEVICE, ResourceCapacity
from naiad.engine.serving import requests_in_flight
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.requests_in_flight import RequestsInFlight, depth_for
from naiad.engine.serving.warmup import WarmUp
from naiad.guests.exchange import ExecutingBatch, ExecutionReport, SingleResponse
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceBytes, DeviceUse, WrittenBytes
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, InputTensor
from naiad.protocol.metadata import Duration, ModelStatistics
from naiad.protocol.request_plan import CheckedLayout

OUTPUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: -1 }'
MS = 1_000_000
LAYOUT = CheckedLayout(generation=0, batch_size=1, is_repeatable=True, packed=None)


class Scheduler(FifoScheduler[Any, Any]):
    """The default scheduler, which keeps the depths it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.depths: list[int] = []

    def set_depth(self, instance: Any, depth: int) -> None:
        self.depths.append(depth)
        super().set_depth(instance, depth)


class Tracked:
    """Requests in flight with one guest."""

    def __init__(
        self, text: str = PLAIN, more: str = "", *, guests: int = 1, limiter: SharedRateLimiter | None = None
    ) -> None:
        keys = itertools.count(1)
        self.opened: dict[int, OpenRequest] = {}  # all that were started, by key
        self.in_flight = RequestsInFlight(config(text, more), 1, keys, WarmUp((), keys), limiter=limiter)
        self.guests = [FakeGuest(owner=self.in_flight) for _ in range(guests)]
        for guest in self.guests:
            self.in_flight.add_guest(guest)

    @property
    def guest(self) -> FakeGuest:
        return self.guests[0]

    def ask(
        self, answers: Answers | None = None, *, size: int = 1, elements: int = 2, data: bytes = b"", **more: Any
    ) -> tuple[int, Answers]:
        """Start a request of *size* rows; its key and what it gets."""
        answers = answers or Answers()
        data = data or bytes(4 * size * elements)
        tensors = [InputTensor("IN", Datatype.FP32, (size, elements), data)]
        opened = OpenRequest(InferRequest("m", -1, tensors, **more), answers)
        self.in_flight.start(opened, LAYOUT._replace(batch_size=size))
        self.opened[opened.key] = opened
        return opened.key, answers

    def statistics(self) -> ModelStatistics:
        return self.in_flight.statistics.value("m", "1")


def raise_(error: Exception) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise error

    return function


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock().install(monkeypatch)


@pytest.fixture
def scheduler(monkeypatch) -> Scheduler:
    made = Scheduler()
    monkeypatch.setattr(requests_in_flight, "scheduler_for", lambda *_: made)
    return made


# -- how many requests a guest holds --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("execution_ns", "depth"),
    [(0, 16), (62_500, 16), (62_501, 15), (250_000, 4), (333_333, 3), (333_334, 2), (999_999, 1), (MS, 1), (9 * MS, 1)],
)
def test_a_guest_may_hold_what_it_executes_within_a_millisecond(execution_ns, depth):
    assert depth_for(execution_ns) == depth


def execute(tracked: Tracked, took: int) -> None:
    tracked.in_flight.on_batch_done(tracked.guest, ExecutingBatch((1,), -1, 1, 1), 1000, 1000 + took)


def test_one_slow_batch_lowers_the_depth_at_once_and_it_rises_as_the_pace_falls_by_an_eighth_per_batch(scheduler):
    tracked = Tracked()
    for _ in range(150):  # a new version counts as slow: its pace begins at a second
        execute(tracked, 0)
    assert scheduler.depths[-1] == 16
    scheduler.depths.clear()

    execute(tracked, 500_000)
    for _ in range(16):
        execute(tracked, 0)

    assert scheduler.depths == [depth_for(int(500_000 * 0.875**number)) for number in range(17)]
    assert (scheduler.depths[0], scheduler.depths[3], scheduler.depths[4], scheduler.depths[-1]) == (2, 2, 3, 16)


def test_a_new_version_counts_as_slow_until_its_guests_have_executed_many_batches(scheduler):
    tracked = Tracked()
    depths = []
    for _ in range(60):
        execute(tracked, 0)
        depths.append(scheduler.depths[-1])

    assert depths[:51] == [1] * 51, "a second, less an eighth 51 times, is more than a millisecond"
    assert depths[-1] > 1


def warmed_up(tracked: Tracked, took: int) -> None:
    """Let the pace fall to *took*."""
    for _ in range(150):
        tracked.ask()
        next(guest for guest in tracked.guests if guest.batches).answer(started=0, ended=took)
    for guest in tracked.guests:
        guest.executed.clear()


@pytest.mark.parametrize(("took", "ahead"), [(2 * MS, 1), (10 * MS, 1), (10 * MS + 8, 0)])
def test_a_guest_that_executes_for_some_milliseconds_has_its_next_request_while_others_wait(clock, took, ahead):
    tracked = Tracked()
    warmed_up(tracked, took)
    asked = [tracked.ask() for _ in range(3)]
    assert len(tracked.guest.batches) == 1, "nothing waited when the last batch was done"

    tracked.guest.answer(started=0, ended=took)

    assert len(tracked.guest.batches) == 1 + ahead
    tracked.guest.answer(started=0, ended=took)
    tracked.guest.answer(started=0, ended=took)
    assert tracked.guest.executed == [[key] for key, _ in asked]
    assert not tracked.guest.batches


def test_no_guest_gets_a_request_ahead_while_fewer_wait_than_there_are_guests(clock):
    tracked = Tracked(guests=2)
    warmed_up(tracked, 2 * MS)
    asked = [tracked.ask() for _ in range(4)]  # one for each guest; two wait
    first, second = tracked.guests

    first.answer(started=0, ended=2 * MS)
    assert [len(guest.batches) for guest in (first, second)] == [2, 1], "as many waited as there are guests"
    second.answer(started=0, ended=2 * MS)
    first.answer(started=0, ended=2 * MS)
    tracked.ask()
    asked.append(tracked.ask())

    assert [len(guest.batches) for guest in (first, second)] == [1, 1]
    assert first.executed + second.executed != [[key] for key, _ in asked], "the last one waits"


def test_requests_that_a_scheduler_may_put_together_are_not_sent_ahead(clock):
    async def batched() -> int:
        tracked = Tracked(BATCHED, "dynamic_batching { }")
        warmed_up(tracked, 2 * MS)
        for _ in range(4):
            tracked.ask()
        tracked.guest.answer(started=0, ended=2 * MS)
        return len(tracked.guest.batches)

    assert clock.run(batched()) == 1


def test_the_time_that_a_request_waits_in_its_guest_behind_another_counts_as_time_in_the_queue(clock):
    tracked = Tracked()
    tracked.in_flight.forwarding_scheduler.set_depth(tracked.guest, 2)
    sent = clock.now_ns
    tracked.ask()
    tracked.ask()
    tracked.guest.batches = {number: batch._replace(sent=sent) for number, batch in tracked.guest.batches.items()}
    clock.advance(9e-6)

    tracked.guest.answer(started=sent + 1000, ended=sent + 5000)
    tracked.guest.free_since = sent + 5000
    tracked.guest.answer(started=sent + 6000, ended=sent + 8000)

    sums = tracked.statistics()
    assert (sums.queue.ns, sums.compute_input.ns) == (5000, 1000 + 1000)
    assert [each.compute_input.ns for each in sums.batch_stats] == [2000]


def test_a_guest_with_lanes_holds_at_least_one_batch_for_each(scheduler):
    tracked = Tracked()
    assert scheduler.depths == [], "without lanes it begins with the depth that the scheduler gives it"
    tracked.in_flight.lanes = 4
    tracked.in_flight.add_guest(tracked.guest)
    assert scheduler.depths == [4]
    execute(tracked, 900_000)
    assert scheduler.depths[-1] == 4


# -- from the client ------------------------------------------------------------------------------------------------


def test_a_request_goes_to_the_guest_at_once_and_its_response_to_the_sink(clock):
    tracked = Tracked()
    key, answers = tracked.ask(request_id="a")
    assert tracked.guest.executed == [[key]]
    assert len(tracked.in_flight) == 1
    assert tracked.in_flight.find(key).worker is tracked.guest
    assert tracked.in_flight.request_of(key) is tracked.guest.requests[key]

    tracked.guest.answer()

    ((response, final),) = answers.responses
    assert (response.request_id, final) == ("a", True)
    assert len(tracked.in_flight) == 0
    assert tracked.in_flight.find(key) is None
    assert tracked.in_flight.request_of(key) is None


def test_times_and_rows_of_a_request_are_counted_from_its_arrival_to_its_response(clock):
    tracked = Tracked(BATCHED)
    tracked.ask(size=3)
    began = clock.now_ns
    clock.advance(0.005)
    tracked.guest.answer(started=began + MS, ended=began + 3 * MS)
    found = tracked.statistics()
    assert (found.inference_count, found.execution_count) == (3, 1)
    assert found.success == Duration(1, 5 * MS)
    assert found.queue.ns == 0
    assert found.compute_infer.ns == 2 * MS
    assert found.fail.count == 0


def test_memory_is_trimmed_twice_in_the_pause_after_each_request(clock):
    tracked = Tracked()
    assert tracked.in_flight.trims_due == 0
    tracked.ask()
    assert tracked.in_flight.trims_due == 2
    tracked.in_flight.trims_due = 0
    tracked.in_flight.track(OpenRequest(InferRequest("m", -1, []), Answers()), LAYOUT)
    assert tracked.in_flight.trims_due == 2


def test_a_request_that_is_untracked_is_in_flight_no_more(clock):
    tracked = Tracked()
    key, answers = tracked.ask()
    found = tracked.in_flight.find(key)
    tracked.in_flight.untrack(found)
    tracked.in_flight.untrack(found)
    assert len(tracked.in_flight) == 0
    assert answers.responses == []


def test_a_request_that_fails_in_an_unexpected_way_leaves_nothing_behind(clock, monkeypatch):
    tracked = Tracked(guests=0)
    before = tracked.ask()[0]
    monkeypatch.setattr(tracked.in_flight, "_carry_out", raise_(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        tracked.ask()
    assert [tracked.in_flight.find(before) is None, len(tracked.in_flight)] == [False, 1]
    assert tracked.in_flight.dispatcher.waiting_count == 1


async def test_a_request_whose_queue_is_full_is_rejected_and_counted_nowhere(clock):
    tracked = Tracked(BATCHED, "dynamic_batching { default_queue_policy { max_queue_size: 1 } }", guests=0)
    kept, _ = tracked.ask()
    with pytest.raises(QueueFullError, match="Exceeds maximum queue size"):
        tracked.ask(answers := Answers())
    assert answers.responses == []
    assert (len(tracked.in_flight), tracked.in_flight.find(kept) is None) == (1, False)
    assert tracked.statistics().fail.count == 0


async def test_a_request_that_waits_too_long_is_rejected_and_counted_as_that(clock):
    policy = "default_queue_policy { default_timeout_microseconds: 5000 timeout_action: REJECT }"
    tracked = Tracked(BATCHED, f"dynamic_batching {{ {policy} }}", guests=0)
    _, answers = tracked.ask()
    await asyncio.sleep(0.02)
    assert answers.error.message == "Request timeout expired"
    assert len(tracked.in_flight) == 0
    found = tracked.statistics()
    assert (found.failures["REJECTED"], found.failures["CANCELED"]) == (1, 0)


async def test_requests_of_unequal_shapes_do_not_share_a_batch(clock):
    more = 'input { name: "IN" data_type: TYPE_FP32 dims: -1 } dynamic_batching { max_queue_delay_microseconds: 1000 }'
    tracked = Tracked(f'name: "m" backend: "python" max_batch_size: 8 {OUTPUT}', more)
    keys = [tracked.ask(elements=elements)[0] for elements in (2, 2, 3)]
    await asyncio.sleep(0.01)
    while tracked.guest.batches:
        tracked.guest.answer()
    assert sorted(map(len, tracked.guest.executed)) == [1, 2]
    assert keys[:2] in tracked.guest.executed


def test_a_waiting_request_that_is_cancelled_is_answered_and_counted_as_that(clock):
    tracked = Tracked(guests=0)
    key, answers = tracked.ask()
    tracked.opened[key].cancel()
    assert (answers.error.message, answers.error.code) == ("Request was cancelled", Code.CANCELLED)
    assert tracked.statistics().failures["CANCELED"] == 1
    tracked.opened[key].cancel()
    assert len(answers.responses) == 1
    assert tracked.in_flight.dispatcher.waiting_count == 0


def test_a_request_that_a_guest_has_is_cancelled_there_and_its_response_still_comes(clock):
    tracked = Tracked()
    key, answers = tracked.ask()
    assert tracked.in_flight.has_uncancelled()
    assert tracked.in_flight.is_busy(tracked.guest)
    tracked.opened[key].cancel()
    assert tracked.guest.cancelled == [key]
    assert not tracked.in_flight.has_uncancelled()
    assert not tracked.in_flight.is_busy(tracked.guest)
    assert tracked.in_flight.is_in_use(tracked.guest)
    assert answers.responses == []
    tracked.guest.answer()
    assert answers.is_ended
    assert not tracked.in_flight.is_in_use(tracked.guest)


def test_one_request_that_is_not_cancelled_keeps_a_guest_busy(clock):
    tracked = Tracked(guests=0)
    keys = [tracked.ask()[0] for _ in range(2)]
    tracked.in_flight.find(keys[0]).is_cancelled = True
    assert tracked.in_flight.has_uncancelled()
    guest = FakeGuest(owner=tracked.in_flight)
    guest.open = {*keys, 999}
    assert tracked.in_flight.is_busy(guest)
    guest.open = {keys[0], 999}
    assert not tracked.in_flight.is_busy(guest)


def test_a_waiting_request_is_rejected_with_the_error_that_is_given(clock):
    tracked = Tracked()
    sent, of_sent = tracked.ask()
    waiting, answers = tracked.ask()
    for key in (sent, waiting, waiting):
        tracked.opened[key].reject_waiting(NaiadError("it can never be answered"))
    assert len(answers.responses) == 1
    assert answers.error.message == "it can never be answered"
    assert of_sent.responses == []
    found = tracked.statistics()
    assert (found.fail.count, found.failures["CANCELED"]) == (1, 0)


def test_what_is_done_with_a_request_that_was_given_away_is_ignored_here(clock):
    tracked = Tracked(guests=0)
    key, answers = tracked.ask()
    opened = tracked.opened[key]
    tracked.in_flight.give_away(opened)
    opened.cancel()
    opened.reject_waiting(NaiadError("a deadlock"))
    assert (opened.is_waiting, opened.waits(), opened.is_cancelled, opened.drops_responses) == (False, (), False, False)
    assert (answers.responses, len(tracked.in_flight), tracked.in_flight.dispatcher.waiting_count) == ([], 0, 0)
    tracked.in_flight.add_guest(guest := FakeGuest(owner=tracked.in_flight))
    assert guest.executed == []


# -- decoupled models -----------------------------------------------------------------------------------------------

DECOUPLED = "model_transaction_policy { decoupled: true }"


def part(count: int = 8) -> InferResponse:
    return InferResponse("m", 1, outputs=output(bytes(count)))


def test_a_guest_gets_credit_once_many_of_its_responses_were_sent(clock):
    tracked = Tracked(more=DECOUPLED)
    key, _ = tracked.ask()
    for _ in range(300):
        tracked.guest.respond(key, part(), final=False)
    assert tracked.in_flight.is_held_back(tracked.guest)
    tracked.opened[key].confirm_sent(255)
    assert tracked.guest.credits == []
    tracked.opened[key].confirm_sent(1)
    assert tracked.guest.credits == [(key, 256)]
    tracked.opened[key].confirm_sent(1000)
    assert not tracked.in_flight.is_held_back(tracked.guest), "the client has them all"


def test_a_request_whose_responses_are_dropped_gets_their_end_or_an_error_alone(clock):
    tracked = Tracked(more=DECOUPLED)
    key, answers = tracked.ask()
    other, of_other = tracked.ask()
    for _ in range(300):
        tracked.guest.respond(key, part(), final=False)
    tracked.opened[key].drop_responses()
    assert tracked.guest.credits == [(key, 300)]
    assert not tracked.in_flight.is_held_back(tracked.guest)
    for _ in range(300):
        tracked.guest.respond(key, part(), final=False)
    assert len(answers.responses) == 300
    assert tracked.guest.credits == [(key, 300), (key, 256)]
    tracked.guest.respond(key, part())
    assert answers.responses[300:] == [(None, True)]
    tracked.opened[other].drop_responses()
    tracked.guest.respond(other, InferResponse("m", 1, error=NaiadError("it failed")))
    assert of_other.error.message == "it failed"


def test_the_end_of_a_decoupled_request_without_a_response_is_passed_on_alone(clock):
    tracked = Tracked(more=DECOUPLED)
    key, answers = tracked.ask()
    tracked.guest.respond(key, None, final=False)
    assert answers.responses == []
    tracked.guest.respond(key)
    assert answers.responses == [(None, True)]


PLACE = DeviceBytes(b"gpu", b"handle", 0, 8, None, None)


@pytest.mark.parametrize(
    ("use", "data", "found"),
    [
        (None, bytes(8), bytes(8)),
        (None, PLACE, None),
        (DeviceUse(keeps_outputs=True), PLACE, PLACE),
        (DeviceUse(places={"OUT": PLACE}), bytes(8), None),
        (DeviceUse(places={"OUT": PLACE}), WrittenBytes(8), PLACE),
    ],
    ids=["bytes", "unasked in GPU memory", "in GPU memory", "beside their place", "at their place"],
)
def test_outputs_are_passed_on_only_where_the_request_wants_them(clock, use, data, found):
    tracked = Tracked()
    key, answers = tracked.ask(device=use)
    response = InferResponse("m", 1, outputs=output(data))
    response.is_on_device = not isinstance(data, bytes)
    tracked.guest.respond(key, response)
    ((response, _),) = answers.responses
    if found is None:
        assert response.error.message == "output 'OUT' of model 'm' is not where its request wants it"
        assert response.outputs == ()
        assert tracked.statistics().failures["BACKEND"] == 1
    else:
        (tensor,) = response.outputs
        place = tensor.data
        assert (place == found) if isinstance(found, bytes) else (place.handle, len(place)) == (found.handle, 8)


# -- from the guest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_model_response", "success", "failed", "errors"), [(True, 1, 0, 1), (False, 0, 1, 0)])
def test_an_error_that_the_model_returns_counts_as_a_success_and_one_of_its_guest_as_a_failure(
    clock, is_model_response, success, failed, errors
):
    tracked = Tracked()
    key, answers = tracked.ask()
    began = clock.now_ns
    clock.advance(0.002)
    error = ModelError("no luck", is_model_response=is_model_response)
    tracked.guest.respond(key, InferResponse("m", 1, error=error), started=began, ended=began)
    found = tracked.statistics()
    assert answers.error is error
    assert (found.success.count, found.fail.count, found.error_responses) == (success, failed, errors)
    assert found.failures["BACKEND"] == failed
    assert found.fail.ns == failed * 2 * MS


def test_a_sink_that_fails_ends_its_request_and_no_other(clock, caplog):
    tracked = Tracked(more=DECOUPLED)
    key, answers = tracked.ask(request_id="a")
    other, of_other = tracked.ask()
    answers.problem = ZeroDivisionError("in the sink")
    tracked.guest.respond(key, part(), final=False)
    assert answers.error.message == (
        "cannot pass on a response of 'm': unexpected ZeroDivisionError: in the sink; see the log of the server"
    )
    assert answers.responses[0][0].request_id == "a"
    assert tracked.guest.cancelled == [key]
    assert tracked.guest.credits == [(key, 1 << 40)], "the guest must not wait for a client that has left"
    assert tracked.in_flight.find(key) is None
    assert tracked.in_flight.find(other) is not None
    assert of_other.responses == []
    assert "cannot pass on a response of 'm'" in caplog.text


def test_a_sink_that_fails_at_the_last_response_needs_no_cancellation(clock):
    tracked = Tracked()
    key, answers = tracked.ask()
    answers.problem = ZeroDivisionError()
    tracked.guest.respond(key, part())
    assert answers.is_ended
    assert tracked.guest.cancelled == []


def test_a_response_to_a_request_that_has_ended_is_ignored(clock):
    tracked = Tracked()
    key, answers = tracked.ask()
    tracked.in_flight.fail_all(NaiadError("it is over"))
    tracked.guest.respond(key, part())
    assert len(answers.responses) == 1


def test_a_batch_that_cannot_be_sent_fails_its_requests_and_the_guest_goes_on(clock):
    tracked = Tracked()
    first, answers = tracked.ask()
    second, _ = tracked.ask()
    batch = tracked.guest.batches.pop(1)
    tracked.guest.open.clear()
    tracked.in_flight.on_batch_unsent(tracked.guest, ExecutingBatch((5,), -1, 1, 0), ZeroDivisionError())
    assert answers.responses == [], "samples of the warm-up have no size"
    tracked.in_flight.on_batch_unsent(tracked.guest, batch, ZeroDivisionError("no memory"))
    assert answers.error.message == (
        "cannot send the request to 'm_0_0': unexpected ZeroDivisionError: no memory; see the log of the server"
    )
    assert tracked.guest.executed == [[first], [second]]


def test_samples_of_the_warm_up_are_not_counted_and_free_no_guest(clock, scheduler):
    tracked = Tracked()
    tracked.ask()
    waiting, _ = tracked.ask()
    tracked.in_flight.on_batch_done(tracked.guest, ExecutingBatch((77,), -1, 1, 0), 1, 2)
    assert tracked.statistics().execution_count == 0
    assert [waiting] not in tracked.guest.executed
    assert scheduler.depths == []


@pytest.mark.parametrize(
    ("more", "took", "is_urgent"),
    [("", 2_499_999, False), ("", 2_500_000, True), ("sequence_batching { direct {} }", SECOND, False)],
)
async def test_a_guest_that_executed_long_gets_its_next_batch_first_if_any_request_waits(clock, more, took, is_urgent):
    """The next request of a sequence may depend on responses, so it is not urgent."""
    tracked = Tracked(BATCHED, more, guests=0)
    assert not tracked.in_flight.is_refill_urgent(took)
    tracked.ask(correlation_id=1, flags=SEQUENCE_START)
    assert tracked.in_flight.is_refill_urgent(took) is is_urgent


# -- sequences ------------------------------------------------------------------------------------------------------


async def test_sequences_in_progress_are_known_by_their_ids_and_can_be_finished(clock):
    without = Tracked().in_flight
    assert (without.open_sequences, without.finish_sequences(), without.has_sequence(1)) == (0, 0, False)
    tracked = Tracked(BATCHED, "sequence_batching { direct {} }")
    tracked.ask(correlation_id=1, flags=SEQUENCE_START)
    assert tracked.in_flight.open_sequences == 1
    assert [tracked.in_flight.has_sequence(each) for each in (1, 2)] == [True, False]
    tracked.guest.answer()
    assert tracked.in_flight.is_in_use(tracked.guest)
    assert tracked.in_flight.finish_sequences() == 1
    with pytest.raises(NaiadError, match="stopped accepting new inference"):
        tracked.ask(correlation_id=2, flags=SEQUENCE_START)
    tracked.ask(correlation_id=1, flags=SEQUENCE_END)
    tracked.guest.answer()
    assert tracked.in_flight.finish_sequences() == 0
    assert not tracked.in_flight.is_in_use(tracked.guest)


ITERATIVE = "sequence_batching { iterative_sequence: true direct {} }"


async def test_a_request_that_an_iterative_sequence_reschedules_is_executed_again_and_each_round_is_counted(clock):
    tracked = Tracked(BATCHED, ITERATIVE)
    key, answers = tracked.ask(correlation_id=1, flags=SEQUENCE_START)
    tracked.guest.respond(key, final=False, reschedule=True, started=clock.now_ns, ended=clock.now_ns)
    tracked.guest.finish()
    assert tracked.guest.executed == [[key], [key]]
    assert answers.responses == []
    tracked.guest.answer(started=clock.now_ns, ended=clock.now_ns)
    assert answers.is_ended
    found = tracked.statistics()
    assert (found.success.count, found.execution_count) == (2, 2)


async def test_a_cancelled_request_is_not_rescheduled(clock):
    tracked = Tracked(BATCHED, ITERATIVE)
    key, answers = tracked.ask(correlation_id=1, flags=SEQUENCE_START)
    tracked.opened[key].cancel()
    tracked.guest.respond(key, final=False, reschedule=True)
    assert answers.error.message == "Request was cancelled"
    assert tracked.statistics().failures["CANCELED"] == 1


@pytest.mark.parametrize(
    ("more", "has_returned", "text"),
    [
        (ITERATIVE, True, "model 'm' rescheduled a request, after its execute had returned, which is too late"),
        *(
            (more, False, "model 'm' rescheduled a request, which takes sequence_batching's iterative_sequence")
            for more in ("sequence_batching { direct {} }", "")
        ),
    ],
)
async def test_only_iterative_sequences_may_reschedule_until_execute_has_returned(
    clock, caplog, more, has_returned, text
):
    tracked = Tracked(BATCHED, more)
    key, answers = tracked.ask(correlation_id=1, flags=SEQUENCE_START)
    if has_returned:
        tracked.guest.finish()
    tracked.guest.respond(key, final=False, reschedule=True)
    assert answers.error.message == text
    assert text in caplog.text


# -- what a guest reports -------------------------------------------------------------------------------------------


def test_requests_that_wait_inside_their_model_are_counted_until_they_are_computed(clock):
    tracked = Tracked(more=DECOUPLED, guests=2)
    keys = [tracked.ask()[0] for _ in range(2)]
    for key in (*keys, 999):
        tracked.in_flight.on_progress(key, 0)
    assert tracked.in_flight.queued_inside == 2
    tracked.in_flight.on_progress(keys[0], clock.now_ns)
    assert tracked.in_flight.queued_inside == 1
    tracked.in_flight.fail_all(NaiadError("it is over"))
    assert tracked.in_flight.queued_inside == 0


def test_the_time_until_a_request_is_computed_counts_as_queued_and_no_clock_of_a_model_makes_it_negative(clock):
    tracked = Tracked()
    key, _ = tracked.ask()
    found = tracked.in_flight.find(key)
    sent = found.laid_out
    clock.advance(0.010)
    for reported, expected in [(sent - MS, sent), (sent + 4 * MS, sent + 4 * MS), (sent + 90 * MS, sent + 10 * MS)]:
        found.laid_out = sent
        tracked.in_flight.on_progress(key, reported)
        assert found.laid_out == expected


@pytest.mark.parametrize(
    ("is_native", "is_late", "counted"),
    [(True, False, 1), (True, True, 1), (False, False, 0)],
    ids=["native", "after the end of the request", "in Python"],
)
def test_a_native_backend_counts_its_requests_itself(clock, is_native, is_late, counted):
    tracked = Tracked(BATCHED)
    if is_native:
        tracked.in_flight.count_reports()
    assert (tracked.in_flight.forwarding_scheduler is None) is is_native
    key, answers = tracked.ask(size=3)
    report = ExecutionReport(wire.REPORT_SUCCESS, key, *[clock.now_ns] * 4)
    if is_late:
        tracked.guest.answer()
        assert (answers.is_ended, tracked.statistics().success.count) == (True, 0)
    tracked.in_flight.on_reports([report])
    found = tracked.statistics()
    assert (found.success.count, found.inference_count, found.execution_count) == (counted, 3 * counted, 0)
    if is_native and not is_late:
        tracked.guest.answer(started=clock.now_ns, ended=clock.now_ns)
        assert answers.is_ended
        assert tracked.statistics() == found, "neither response nor batch is counted again"


# -- the end of a guest ---------------------------------------------------------------------------------------------


EXITED = Clock().monotonic()


def end(tracked: Tracked, *, added: bool = True) -> FakeGuest:
    """The guest exits, and another one takes its place."""
    gone = tracked.guests.pop(0)
    tracked.in_flight.on_guest_exit(gone, exited(), EXITED)
    tracked.guests.insert(0, FakeGuest(owner=tracked.in_flight))
    if added:
        tracked.in_flight.add_guest(tracked.guest)
    return gone


def test_what_a_guest_executed_fails_when_it_exits_and_what_it_had_only_received_is_executed_by_the_next(clock):
    tracked = Tracked()
    tracked.in_flight.forwarding_scheduler.set_depth(tracked.guest, 3)
    asked = [tracked.ask() for _ in range(4)]
    gone = end(tracked)
    (_, first), *others = asked
    assert first.error.message == "'m_0_0' exited with code 1"
    assert [answers.responses for _, answers in others] == [[], [], []]
    assert (gone.batches, gone.open) == ({}, set())
    for _ in others:
        tracked.guest.answer()
    assert tracked.guest.executed == [[key] for key, _ in others], "in their order"
    assert all(answers.error is None for _, answers in others)


def test_a_guest_that_exited_before_it_read_its_batch_had_begun_none(clock):
    tracked = Tracked()
    key, answers = tracked.ask()
    tracked.guest.batches[1] = tracked.guest.batches[1]._replace(sent=0)
    end(tracked)
    assert answers.responses == []
    assert tracked.guest.executed == [[key]]


def test_a_guest_with_lanes_executed_as_many_batches_as_it_has_lanes(clock):
    tracked = Tracked()
    tracked.in_flight.lanes = 2
    tracked.in_flight.forwarding_scheduler.set_depth(tracked.guest, 3)
    asked = [tracked.ask() for _ in range(3)]
    end(tracked)
    assert [answers.is_ended for _, answers in asked] == [True, True, False]


def test_a_request_that_its_guest_still_answers_after_execute_fails_with_it(clock):
    tracked = Tracked(more=DECOUPLED)
    key, answers = tracked.ask()
    tracked.guest.finish()
    assert tracked.guest.open == {key}
    end(tracked)
    assert answers.error.message == "'m_0_0' exited with code 1"


def test_a_cancelled_request_that_was_not_begun_ends_with_its_guest(clock):
    tracked = Tracked()
    tracked.in_flight.forwarding_scheduler.set_depth(tracked.guest, 2)
    tracked.ask()
    key, answers = tracked.ask()
    tracked.opened[key].cancel()
    end(tracked)
    assert answers.error.message == "Request was cancelled"
    assert tracked.guest.executed == []
    assert tracked.statistics().failures["CANCELED"] == 1


def test_a_request_that_ends_guest_after_guest_is_refused_also_while_it_waits(clock):
    """The third exit refuses it: what waits, and what a guest had received, is answered without being executed."""
    tracked = Tracked()
    for _ in range(2):
        tracked.ask(data=b"fatal   ")
        end(tracked)
    tracked.in_flight.forwarding_scheduler.set_depth(tracked.guest, 2)
    _, begun = tracked.ask(data=b"fatal   ")
    _, received = tracked.ask(data=b"fatal   ")
    _, waiting = tracked.ask(data=b"fatal   ")
    harmless, of_harmless = tracked.ask(data=b"harmless")
    blamed = tracked.in_flight.on_guest_exit(tracked.guests.pop(), exited(), EXITED)
    assert blamed == {EXITED}
    assert begun.error.message == "'m_0_0' exited with code 1"
    for answers in (received, waiting):
        assert "this request ended 3 processes of model 'm'" in answers.error.message
    assert of_harmless.responses == []
    tracked.guests.append(FakeGuest(owner=tracked.in_flight))
    tracked.in_flight.add_guest(tracked.guest)
    assert tracked.guest.executed == [[harmless]]
    assert len(tracked.in_flight) == 1


def test_an_exit_with_no_request_blames_nobody_and_the_guest_gets_no_further_request(clock):
    tracked = Tracked()
    assert tracked.in_flight.on_guest_exit(tracked.guest, exited(), 5.0) == frozenset()
    assert not tracked.in_flight.fatal
    tracked.ask()
    assert (tracked.guest.executed, tracked.in_flight.dispatcher.waiting_count) == ([], 1)


def test_a_retired_guest_finishes_what_it_has_and_gets_nothing_more(clock):
    tracked = Tracked()
    _, answers = tracked.ask()
    tracked.in_flight.retire_guest(tracked.guest)
    later, _ = tracked.ask()
    tracked.guest.answer()
    tracked.in_flight.forget_guest(tracked.guest)
    assert answers.error is None
    assert answers.is_ended
    assert tracked.guest.executed == [[1]]
    assert tracked.in_flight.find(later).worker is None


def test_what_a_removed_guest_has_left_fails(clock):
    tracked = Tracked()
    _, answers = tracked.ask()
    _, waiting = tracked.ask()
    tracked.guest.open.add(999)
    tracked.in_flight.fail_guest(tracked.guest, NotReadyError("instance 'm_0_0' was removed"))
    assert answers.error.message == "instance 'm_0_0' was removed"
    assert waiting.responses == []


def test_how_long_the_oldest_waiting_request_has_waited(clock):
    tracked = Tracked()
    assert tracked.in_flight.oldest_wait_ns() == 0
    tracked.ask()
    clock.advance(1)
    assert tracked.in_flight.oldest_wait_ns() == 0, "a guest has it"
    tracked.ask()
    clock.advance(0.002)
    tracked.ask()
    clock.advance(0.001)
    assert tracked.in_flight.oldest_wait_ns() == 3 * MS


# -- failing --------------------------------------------------------------------------------------------------------


def test_requests_that_wait_fail_and_those_that_a_guest_has_do_not(clock):
    tracked = Tracked()
    _, sent = tracked.ask()
    _, waiting = tracked.ask(request_id="w")
    clock.advance(0.003)
    tracked.in_flight.fail_waiting(error := NotReadyError("it is given up"))
    assert sent.responses == []
    ((response, final),) = waiting.responses
    assert (response.error, response.request_id, response.model_name, response.model_version) == (error, "w", "m", 1)
    assert final
    assert tracked.statistics().fail == Duration(1, 3 * MS)
    tracked.in_flight.fail_all(error)
    assert sent.error is error
    assert len(tracked.in_flight) == 0


def test_an_error_that_is_passed_on_keeps_no_frames_with_the_tensors_of_requests(clock):
    tracked = Tracked()
    _, answers = tracked.ask()
    try:
        raise NaiadError("it failed")
    except NaiadError as error:
        tracked.in_flight.fail_all(error)
    assert answers.error.__traceback__ is None


@pytest.mark.parametrize(
    ("more", "is_plain"),
    [("", True), (DECOUPLED, False), (" max_batch_size: 2 dynamic_batching {}", False)],
)
async def test_a_model_whose_requests_are_batches_and_whose_responses_stay_as_they_are_is_plain(clock, more, is_plain):
    assert (Tracked(PLAIN, more).in_flight.forwarding_scheduler is not None) is is_plain


async def test_responses_leave_in_the_order_of_their_requests_where_the_model_asks_for_that(clock):
    tracked = Tracked(BATCHED, "dynamic_batching { preserve_ordering: true }", guests=2)
    order = []
    for number in range(2):
        answers = Answers()
        answers.send = lambda *_, number=number: order.append(number)
        tracked.ask(answers)
    first, second = tracked.guests
    assert len(first.executed) == len(second.executed) == 1
    second.answer()
    first.answer()
    assert order == [0, 1]


class Trace:
    """Records the times that it is given."""

    context = b""

    def __init__(self) -> None:
        self.times: list[tuple[int, ...]] = []

    def on_computed(self, *times: int) -> None:
        self.times.append(times)


def test_the_trace_of_a_request_gets_its_times_with_the_last_response(clock):
    tracked, trace = Tracked(more=DECOUPLED), Trace()
    began = clock.now_ns
    key, _ = tracked.ask(trace=trace)
    clock.advance(0.004)
    tracked.guest.respond(key, part(), final=False, started=began + MS, ended=began + 2 * MS)
    assert trace.times == []
    tracked.guest.respond(key, part(), started=began + MS, ended=began + 3 * MS)
    assert trace.times == [(began, began, began + MS, began + 3 * MS, began + 4 * MS)]


def test_a_forwarded_response_that_its_source_cannot_pass_on_ends_the_request_with_an_error(clock):
    tracked, answers = Tracked(), Answers()

    class Source:
        request_of = staticmethod(lambda forwarded: InferRequest("m", -1, [], "r"))
        sink_of = staticmethod(lambda number: answers)
        respond = staticmethod(raise_(ZeroDivisionError("no room")))

    opened = OpenRequest(None, None, False, ForwardedRequest(Source(), 1, b"r", b""))
    tracked.in_flight.track(opened, LAYOUT)
    batch = ExecutingBatch((opened.key,), -1, 1, 1)
    tracked.in_flight.on_forwarded_response(tracked.guest, SingleResponse(1, opened.key, 0, 0, None, b""), batch)
    assert answers.error.message.startswith("cannot pass on a response of 'm': unexpected ZeroDivisionError: no room")
    assert len(tracked.in_flight) == 0


def test_what_has_ended_before_its_guest_exits_is_neither_failed_nor_requeued(clock):
    tracked = Tracked()
    tracked.in_flight.forwarding_scheduler.set_depth(tracked.guest, 3)
    asked = [tracked.ask() for _ in range(3)]
    tracked.in_flight.fail([tracked.in_flight.find(asked[1][0])], NaiadError("it is over"))
    end(tracked)
    assert [len(answers.responses) for _, answers in asked] == [1, 1, 0]
    assert tracked.guest.executed == [[asked[2][0]]]


LIMITED = """
instance_group { name: "m_0" count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }
"""


def limited(limiter: SharedRateLimiter, text: str, more: str = "", *, guests: int = 1) -> Tracked:
    """A in_flight whose guests need the resource R for each batch."""
    tracked = Tracked(text, more + LIMITED, guests=0, limiter=limiter)
    tracked.guests = [FakeGuest(launch_spec(f"m_0_{number}"), tracked.in_flight) for number in range(guests)]
    for guest in tracked.guests:
        tracked.in_flight.add_guest(guest)
    return tracked


async def test_a_resource_that_one_instance_holds_is_given_to_the_next_when_its_batch_or_its_guest_ends(clock):
    limiter = one_resource()
    tracked = limited(limiter, PLAIN, guests=2)
    assert tracked.in_flight.forwarding_scheduler is None
    first, second = [tracked.ask()[0] for _ in range(2)]
    running = [guest for guest in tracked.guests if guest.open]
    assert [guest.executed for guest in running] == [[[first]]], "there is one resource for both"
    running[0].answer()
    await turns()
    running = [guest for guest in tracked.guests if guest.open]
    assert [guest.executed[-1] for guest in running] == [[second]]
    third = tracked.ask()[0]
    tracked.in_flight.on_guest_exit(running[0], exited(), EXITED)
    await turns()
    (other,) = [guest for guest in tracked.guests if guest is not running[0]]
    assert other.executed[-1] == [third]


def one_resource() -> SharedRateLimiter:
    return SharedRateLimiter([ResourceCapacity("R", 1, EVERY_DEVICE)])


async def two_limited() -> tuple[Tracked, FakeGuest, FakeGuest]:
    """Two requests: one guest executes the first, the other waits for the resource with the second."""
    tracked = limited(one_resource(), PLAIN, guests=2)
    tracked.ask()
    tracked.ask()
    running, waiting = sorted(tracked.guests, key=lambda guest: not guest.open)
    assert (running.executed, waiting.executed) == ([[1]], [])
    return tracked, running, waiting


async def test_what_a_retired_guest_waits_with_goes_to_another_one_and_it_holds_its_resources_until_it_has_ended(clock):
    tracked, running, waiting = await two_limited()
    tracked.in_flight.retire_guest(waiting)
    running.answer()
    await turns()
    assert (running.executed, waiting.executed) == ([[1], [2]], [])
    tracked, running, waiting = await two_limited()
    tracked.in_flight.retire_guest(running)
    await turns()
    assert waiting.executed == []
    tracked.in_flight.forget_guest(running)
    await turns()
    assert waiting.executed == [[2]]


async def test_a_guest_that_is_added_needs_what_its_group_says_then(clock):
    tracked, _, waiting = await two_limited()
    tracked.in_flight.follow_groups(config(PLAIN, LIMITED.replace("count: 2", "count: 3")))
    tracked.in_flight.add_guest(added := FakeGuest(launch_spec("m_0_2"), tracked.in_flight))
    tracked.ask()
    await turns()
    assert waiting.executed == added.executed == []


async def test_a_request_that_is_cancelled_while_its_batch_of_slots_waits_for_a_resource_disturbs_no_other(clock):
    """Its row stays in the batch: without it, the rows behind it would change slots."""
    limiter = one_resource()
    slots = "direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 1 }"
    other, tracked = limited(limiter, PLAIN), limited(limiter, BATCHED, f"sequence_batching {{ {slots} }}")
    other.ask()
    asked = [tracked.ask(correlation_id=number, flags=SEQUENCE_START)[1] for number in range(1, 4)]
    await asyncio.sleep(0.01)
    assert tracked.guest.executed == [], "another model has the resource"
    tracked.opened[2].cancel()
    assert asked[1].error.message == "Request was cancelled"
    other.guest.answer()
    await turns()
    assert (tracked.guest.executed, tracked.guest.cancelled) == ([[1, 2, 3]], [2])
    tracked.guest.answer()
    assert [len(answers.responses) for answers in asked] == [1, 1, 1]
    assert asked[0].error is asked[2].error is None


# -- what divides requests among processes ------------------------------------------------------------------------------


def busy(typical: int, *, guests: int = 1, requests: int = 1) -> Tracked:
    """A in_flight whose load is observed, with requests in flight."""
    tracked = Tracked(guests=guests)
    tracked.in_flight.observe_load(lambda _: None)
    for _ in range(requests):
        tracked.ask()
    tracked.in_flight.typical = typical
    return tracked


@pytest.mark.parametrize(
    ("typical", "elsewhere", "guests", "requests", "is_taken"),
    [
        (MS, 0, 1, 1, True),
        (MS + 1, 0, 1, 1, False),
        (0, MS, 1, 1, True),
        (0, MS + 1, 1, 1, False),
        (MS // 2, 0, 1, 2, True),
        (MS // 2, 0, 1, 3, False),
        (MS // 2, 0, 2, 4, True),
        (MS // 2, 0, 2, 5, False),
        (MS * 100, 0, 2, 1, True),
    ],
)
def test_a_request_stays_if_an_instance_is_idle_or_will_soon_have_executed_what_is_here(
    clock, typical, elsewhere, guests, requests, is_taken
):
    tracked = busy(typical, guests=guests, requests=requests)
    assert tracked.in_flight.takes_at_once(elsewhere) is is_taken
    assert tracked.in_flight.has_idle() is (requests < guests)


def test_a_request_does_not_stay_behind_one_that_lasts_unexpectedly_long(clock):
    tracked = busy(1)
    clock.advance(0.009_999)
    assert tracked.in_flight.takes_at_once()
    clock.advance(0.000_001)
    assert not tracked.in_flight.takes_at_once()


async def test_without_an_instance_that_is_idle_for_one_request_none_is_taken(clock):
    for tracked in (Tracked(guests=0), Tracked(BATCHED, "dynamic_batching { }")):
        assert not tracked.in_flight.has_idle()
        assert not tracked.in_flight.takes_at_once()


def test_the_load_is_noted_when_a_request_was_answered_and_what_is_typical_follows_slowly(clock):
    tracked = Tracked()
    noted: list[int] = []
    tracked.in_flight.observe_load(noted.append)
    tracked.in_flight.typical = 1600
    tracked.ask()
    tracked.ask()
    assert noted == []
    tracked.guest.answer(started=0, ended=MS)
    assert tracked.in_flight.typical == 1700
    tracked.guest.answer(started=0, ended=1700)
    assert tracked.in_flight.typical == 1700 - 1700 // 16
    assert noted == [1, 0]
