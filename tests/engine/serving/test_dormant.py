"""Requests of a model that is loaded on demand, while it has no guests; the test loads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine.submitting import submit
from fakes.clock import Clock, turns
from fakes.guests import PLAIN, Answers, config, request

from naiad.core.errors import Code, InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.device_use import device_use
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.protocol.metadata import ModelCondition

DECOUPLED = "model_transaction_policy { decoupled: true }"

TIMEOUT = 30.0


class Wakes:
    """Records how often, and how urgently, the model was to be loaded."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def __call__(self, *, is_urgent: bool) -> None:
        self.calls.append(is_urgent)


def version(text: str = PLAIN, *, wakes: Wakes | None = None, is_known: bool = True, **more: Any) -> DormantVersion:
    return DormantVersion(config(text), 1, wakes or Wakes(), timeout=TIMEOUT, is_known=is_known, **more)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock().install(monkeypatch)


async def end_of(clock: Clock, answers: Answers) -> float:
    """Seconds until a request has its last response."""
    began = clock.monotonic()
    for _ in range(1000):
        if answers.is_ended:
            return clock.monotonic() - began
        await turns()
        if not answers.is_ended:
            clock.advance(0.25)
    raise AssertionError("the request has no end")


@pytest.mark.parametrize(
    ("timeout_us", "seconds", "flag"),
    [
        (0, TIMEOUT, " (--demand-load-timeout)"),
        (2_500_000, 2.5, ", the request's timeout"),
        (40_000_000, TIMEOUT, " (--demand-load-timeout)"),
        (30_000_000, TIMEOUT, " (--demand-load-timeout)"),
    ],
)
async def test_a_request_waits_for_the_load_as_long_as_its_own_timeout_and_the_flag_allow(
    clock, timeout_us, seconds, flag
):
    served, answers = version(), Answers()
    opened = submit(served, request(timeout_us=timeout_us), answers)
    assert opened.is_waiting
    assert await end_of(clock, answers) == pytest.approx(seconds, abs=0.3)
    assert isinstance(answers.error, NotReadyError)
    assert answers.error.message == f"model 'm' was not loaded within {seconds:g} s{flag}"
    assert not opened.is_waiting


async def ask(served: DormantVersion, answers: Answers | None = None, **more: Any) -> tuple[OpenRequest, Answers]:
    answers = answers or Answers()
    needs_idle = more.pop("needs_idle", False)
    return submit(served, request(**more), answers, needs_idle=needs_idle), answers


async def test_each_request_wakes_the_model_and_says_whether_another_model_waits_for_it(clock):
    wakes = Wakes()
    served = version(wakes=wakes)
    await ask(served)
    await ask(served, needs_idle=True)
    assert wakes.calls == [False, True]
    assert served.pending_count == 2
    assert served.is_finishing_requests() is True


async def test_a_request_that_does_not_fit_the_model_wakes_nothing_unless_a_load_may_change_the_configuration(clock):
    wakes, answers = Wakes(), Answers()
    served = version(wakes=wakes)
    with pytest.raises(InvalidRequestError, match="unexpected shape"):
        submit(served, InferRequest("m", -1, [InputTensor("IN", Datatype.FP32, (3,), bytes(12))]), answers)
    assert (wakes.calls, answers.responses, served.pending_count) == ([], [], 0)
    assert served.statistics().refusals["invalid"] == 1
    served = version(is_known=False)
    submit(served, InferRequest("m", -1, []), Answers())
    assert served.pending_count == 1


async def test_what_is_known_of_a_model_without_loading_it(clock):
    served = version()
    assert served.metadata.name == "m"
    assert [tensor.name for tensor in served.metadata.inputs] == ["IN"]
    assert served.config.json["name"] == "m"
    assert served.device == device_use(config(), is_native=False)
    assert (served.reason, served.is_ready(), served.are_all_ready(), served.is_lost) == ("", True, True, False)
    assert (served.direct, served.instances, served.open_sequences) == (None, (), 0)
    assert served.statistics().condition is ModelCondition.READY
    assert not served.is_finishing_requests()
    native = PLAIN.replace('"python"', '"b"')
    given = replace(served.metadata, platform="given")
    totals = Statistics()
    other = version(native, metadata=given, totals=totals)
    assert other.device == device_use(config(native), is_native=True)
    assert other.metadata is given
    assert other.totals is totals
    assert other.number > served.number


async def test_a_request_whose_load_has_not_begun_is_told_why(clock):
    served = version()
    _, answers = await ask(served, timeout_us=1_000_000)
    served.hindrance = "the models in use need the memory"
    await end_of(clock, answers)
    assert answers.error.message == (
        "model 'm' was not loaded within 1 s, the request's timeout: the models in use need the memory"
    )


class Loaded:
    """The loaded version that takes the dormant one's place: holds what it gets, and records what is done with it."""

    def __init__(self, text: str = PLAIN) -> None:
        self.config = config(text)
        self.submitted: list[OpenRequest] = []
        self.calls: list[tuple[Any, ...]] = []
        self.problem: NaiadError | None = None
        self.answers_at_once = False

    def accept(self, opened: OpenRequest) -> None:
        if self.problem is not None:
            raise self.problem
        opened.holder = self
        self.submitted.append(opened)
        if self.answers_at_once:
            self.end(opened)

    def end(self, opened: OpenRequest) -> None:
        opened.sink.send(None, True)
        opened.release()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return name

        return call


async def test_requests_that_waited_go_to_the_loaded_version_in_their_order_and_no_timeout_ends_them(clock):
    served, loaded = version(), Loaded()
    asked = [await ask(served, request_id=str(number), needs_idle=number == 1) for number in range(3)]
    served.submit_waiting(loaded)
    assert loaded.submitted == [opened for opened, _ in asked]
    assert [(each.request.request_id, each.needs_idle) for each in loaded.submitted] == [
        ("0", False),
        ("1", True),
        ("2", False),
    ]
    assert served.pending_count == 0
    assert not served.is_finishing_requests(), "they are the loaded version's"
    clock.advance(10 * TIMEOUT)
    await turns()
    assert [answers.responses for _, answers in asked] == [[], [], []]
    for opened, answers in asked:
        opened.sink.send(response := InferResponse("m", 1), False)
        loaded.end(opened)
        assert answers.responses == [(response, False), (None, True)]


async def test_what_is_done_with_a_request_that_was_handed_over_reaches_the_loaded_version_alone(clock):
    served, loaded = version(), Loaded()
    opened, answers = await ask(served)
    served.submit_waiting(loaded)
    error = NaiadError("a deadlock")
    opened.cancel()
    opened.drop_responses()
    opened.confirm_sent(3)
    opened.reject_waiting(error)
    assert (opened.is_waiting, opened.waits()) == ("is_waiting", "waits_of")
    assert loaded.calls == [
        ("cancel_request", opened),
        ("drop_responses", opened),
        ("drop_responses", opened),
        ("confirm_responses", opened, 3),
        ("reject_waiting", opened, error),
        ("is_waiting", opened),
        ("waits_of", opened),
    ]
    assert answers.responses == []
    assert served.statistics().fail.count == 0


async def test_a_request_that_the_loaded_version_answers_at_once_or_refuses_is_handed_over_no_more(clock):
    served, loaded = version(), Loaded()
    loaded.answers_at_once = True
    opened, answers = await ask(served)
    served.submit_waiting(loaded)
    assert answers.responses == [(None, True)]
    assert not served.is_finishing_requests()
    opened.cancel()
    assert loaded.calls == []

    loaded.problem = InvalidRequestError("it does not fit")
    opened, answers = await ask(served, request_id="r")
    served.submit_waiting(loaded)
    assert answers.error.message == "it does not fit"
    assert answers.responses[0][0].request_id == "r"
    assert not served.is_finishing_requests()
    opened.cancel()
    assert (loaded.calls, len(answers.responses)) == ([], 1)


async def test_a_request_that_the_loaded_version_queues_and_refuses_is_answered_and_counted_as_one_that_waited(clock):
    served, loaded, wrapped = version(), Loaded(), Answers()

    def refuse(opened: OpenRequest) -> None:
        opened.queued, opened.sink = clock.monotonic_ns(), wrapped  # as admission does before it refuses
        raise NotReadyError("Exceeds maximum queue size")

    loaded.accept = refuse  # type: ignore[method-assign]
    _, answers = await ask(served)
    clock.advance(0.002)
    served.submit_waiting(loaded)
    assert answers.error.message == "Exceeds maximum queue size"
    assert wrapped.responses == []
    assert (served.statistics().fail.count, served.statistics().fail.ns) == (1, 2_000_000)


async def test_a_request_that_the_answer_to_one_before_it_cancels_is_not_handed_over(clock):
    class CancelsOther(Answers):
        def send(self, response: InferResponse | None, final: bool) -> None:
            super().send(response, final)
            other.cancel()

    served, loaded = version(), Loaded()
    loaded.answers_at_once = True
    await ask(served, CancelsOther())
    other, answers = await ask(served)
    served.submit_waiting(loaded)
    assert answers.error.message == "Request was cancelled"
    assert len(answers.responses) == 1
    assert len(loaded.submitted) == 1


@pytest.mark.parametrize(
    ("before", "after", "policy"),
    [("", DECOUPLED, "decoupled"), (DECOUPLED, "", "not decoupled")],
)
async def test_a_model_that_turns_out_to_be_decoupled_or_not_answers_what_waited_with_that(
    clock, before, after, policy
):
    served, loaded = version(PLAIN + before, is_known=False), Loaded(PLAIN + after)
    _, answers = await ask(served)
    served.submit_waiting(loaded)
    assert loaded.submitted == []
    assert answers.error.message == (
        f"model 'm' turned out to be {policy} when it was loaded; send the request again, and declare "
        "model_transaction_policy in config.pbtxt"
    )
    assert not served.is_finishing_requests()


async def test_a_waiting_request_can_be_cancelled_or_rejected_and_is_counted_as_that(clock):
    served = version()
    (first, cancelled), (second, rejected) = await ask(served, request_id="c"), await ask(served)
    assert [*map(list, first.waits())] == [[]], "guests that are being started will take it"
    clock.advance(0.002)
    first.cancel()
    second.reject_waiting(NaiadError("a deadlock"))
    first.confirm_sent()
    first.drop_responses()
    assert (cancelled.error.message, cancelled.error.code) == ("Request was cancelled", Code.CANCELLED)
    assert rejected.error.message == "a deadlock"
    ((response, final),) = cancelled.responses
    assert (response.model_name, response.model_version, response.request_id, final) == ("m", 1, "c", True)
    found = served.statistics()
    assert (found.fail.count, found.fail.ns, found.failures["CANCELED"]) == (2, 4_000_000, 1)
    for opened in (first, second):
        opened.cancel()
        assert not opened.is_waiting
    clock.advance(10 * TIMEOUT)
    await turns()
    assert (len(cancelled.responses), len(rejected.responses)) == (1, 1)


async def test_after_a_failed_load_requests_are_refused_for_a_while_with_its_error(clock):
    served = version()
    _, answers = await ask(served)
    served.fail_waiting(NotReadyError("it has no model.py"), 5.0)
    assert answers.error.message == "it has no model.py"
    assert (served.reason, served.is_ready(), served.are_all_ready()) == ("it has no model.py", False, True)
    assert served.statistics().condition is ModelCondition.NOT_SERVING
    with pytest.raises(NotReadyError) as refused:
        await ask(served, request_id="5")
    assert refused.value.message == "[request id: 5] model 'm' cannot serve: it has no model.py"
    assert served.statistics().refusals["not_ready"] == 1
    assert not served.is_finishing_requests()
    clock.advance(4.9)
    assert served.reason
    clock.advance(0.1)
    assert (served.reason, served.is_ready()) == ("", True)
    await ask(served)
    assert served.pending_count == 1


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_no_timer_is_left_of_a_request_that_waits_no_more(clock, is_loaded):
    served = version()
    await ask(served)
    (timer,) = served._waiting.values()
    if is_loaded:
        served.submit_waiting(Loaded())
    else:
        served.fail_waiting(NotReadyError("it has no model.py"))
    assert timer.cancelled()


async def test_a_version_that_stops_fails_what_waits_and_leaves_what_it_handed_over_alone(clock):
    served, loaded = version(), Loaded()
    _, handed_over = await ask(served)
    served.submit_waiting(loaded)
    _, waiting = await ask(served)
    await served.stop(0)
    assert waiting.error.message == "model 'm' is being unloaded"
    assert handed_over.responses == []
    with pytest.raises(NotReadyError, match="model 'm' cannot serve: it is being unloaded"):
        await ask(served)
    await served.stop(0)
