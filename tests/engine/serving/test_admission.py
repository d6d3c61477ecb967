"""Admission: a request is checked once per form and load, and rejected before it is started."""

from __future__ import annotations

import pytest
from engine.submitting import submit

from naiad.core.errors import FatalRequestError, InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.admission import Admission
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.request_plan import InputRule, RequestPlan


def plan(generation: int, dims: tuple[int, ...] = (2,), datatype: Datatype = Datatype.FP32) -> RequestPlan:
    return RequestPlan(
        model_name="m",
        model_version=1,
        generation=generation,
        rules={"IN": InputRule("IN", datatype, dims, datatype.byte_size)},
        input_names=("IN",),
        packs_inputs=True,
    )


class Started:
    """Remembers what was started."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, *arguments) -> None:
        self.calls.append(arguments)


def admission(of: RequestPlan) -> tuple[Admission, Started]:
    started = Started()
    return Admission(of, started, Statistics()), started


def request(data: bytes = bytes(8), datatype: Datatype = Datatype.FP32, **more) -> InferRequest:
    return InferRequest("m", -1, [InputTensor("IN", datatype, (2,), data)], **more)


def test_requests_of_one_form_share_their_layout():
    admits, started = admission(plan(1))
    key = object()

    asked = [submit(admits, request(bytes([n] * 8), layout_key=key), None) for n in (1, 2)]
    asked.append(submit(admits, request(), None, needs_idle=True))

    assert [opened for opened, _ in started.calls] == asked
    first, second, third = (layout for _, layout in started.calls)
    assert second is first
    assert third == first
    assert third is not first
    assert [opened.needs_idle for opened, _ in started.calls] == [False, False, True]


def test_a_form_that_fitted_one_load_is_checked_again_by_the_next():
    key = object()
    submit(admission(plan(1))[0], request(layout_key=key), None)
    again, started = admission(plan(2, dims=(3,)))

    with pytest.raises(InvalidRequestError, match="unexpected shape"):
        submit(again, request(layout_key=key), None)

    assert started.calls == []


def test_layouts_that_depend_on_the_bytes_are_never_shared():
    admits, _ = admission(plan(1, datatype=Datatype.BYTES))
    key = object()
    submit(admits, request(bytes(8), Datatype.BYTES, layout_key=key), None)

    with pytest.raises(InvalidRequestError, match="expected 2 string elements"):
        submit(admits, request(bytes(4), Datatype.BYTES, layout_key=key), None)


def test_a_version_that_cannot_serve_rejects_everything():
    admits, started = admission(plan(1))
    admits.reason = "it is being unloaded"

    with pytest.raises(NotReadyError, match=r"\[request id: 5\] model 'm' cannot serve: it is being unloaded"):
        submit(admits, request(request_id="5"), object())

    assert started.calls == []


def refusals_of(admits: Admission) -> int:
    return sum(admits._statistics.value("m", "1").refusals.values())


def test_a_request_that_does_not_fit_is_counted_as_refused():
    admits, started = admission(plan(1, dims=(3,)))

    with pytest.raises(InvalidRequestError, match="unexpected shape"):
        submit(admits, request(), None)

    assert refusals_of(admits) == 1
    assert started.calls == []


class Cache:
    """Has a response to every request, or to none; *asked* are those that were looked for."""

    def __init__(self, *, has_all: bool) -> None:
        self.has_all = has_all
        self.asked: list[InferRequest] = []

    def respond(self, asked: InferRequest, sink: object) -> object:
        self.asked.append(asked)
        return None if self.has_all else ("keeps the response", sink)


@pytest.mark.parametrize(
    ("has_all", "device", "is_asked", "is_started"),
    [(True, None, True, False), (False, None, True, True), (True, object(), False, True)],
    ids=["a hit", "a miss", "in GPU memory"],
)
def test_a_request_is_started_unless_the_cache_has_its_response(has_all, device, is_asked, is_started):
    admits, started = admission(plan(1))
    assert not admits.looks_at_requests
    admits.cache = cache = Cache(has_all=has_all)
    assert admits.looks_at_requests
    sink = object()
    opened = submit(admits, request(device=device), sink)
    assert len(cache.asked) == is_asked
    assert [each for each, _ in started.calls] == [opened] * is_started
    assert opened.is_ended is not is_started
    if is_started:
        assert opened.sink == (("keeps the response", sink) if is_asked else sink)


class Guard:
    """Refuses the id "fatal", and observes others, until what it remembers is old and forgotten."""

    remembers = True
    is_old = False

    def __bool__(self) -> bool:
        return self.remembers

    def forget_old(self) -> None:
        self.remembers = not self.is_old

    def admit(self, asked: InferRequest, sink: object) -> object:
        if asked.request_id == "fatal":
            raise FatalRequestError("it ended 3 guests")
        return ("observes", sink)


def test_requests_that_ended_guests_are_refused_as_long_as_they_are_remembered():
    admits, started = admission(plan(1))
    admits.guard_with(guard := Guard())
    for reason in ("its guests restart", ""):
        admits.reason = reason
        assert admits.looks_at_requests
    with pytest.raises(FatalRequestError, match="it ended 3 guests"):
        submit(admits, request(request_id="fatal"), "sink")
    assert refusals_of(admits) == 1
    assert submit(admits, request(), "sink").sink == ("observes", "sink")
    guard.is_old = True
    assert submit(admits, request(request_id="fatal"), "sink").sink == "sink"
    assert not admits.looks_at_requests
    admits.reason = "its guests restart"
    admits.reason = ""
    assert not admits.looks_at_requests
    assert len(started.calls) == 2


def test_a_request_that_fails_unexpectedly_gets_an_error_and_is_counted_as_refused(caplog):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("odd")

    admits = Admission(plan(1), fail, Statistics())
    with pytest.raises(NaiadError, match="cannot submit the request to 'm': unexpected ZeroDivisionError: odd"):
        submit(admits, request(), None)
    assert refusals_of(admits) == 1
    assert "cannot submit a request to 'm'" in caplog.text


def test_a_request_for_another_process_is_checked_unless_its_form_is_known():
    admits, started = admission(plan(1))
    key = object()

    with pytest.raises(InvalidRequestError, match="IN"):
        admits.require_valid(request(datatype=Datatype.INT32, layout_key=key))
    assert refusals_of(admits) == 1
    assert admits.known_layout(key) is None
    admits.require_valid(request(layout_key=key))
    assert admits.known_layout(key) is not None
    admits.require_valid(request(datatype=Datatype.INT32, layout_key=key))  # the key says that it has that form
    assert refusals_of(admits) == 1
    assert started.calls == []


def test_a_request_that_comes_back_from_another_process_is_started_while_the_version_serves():
    admits, started = admission(plan(1))
    opened = OpenRequest(request(), None)

    admits.start(opened)
    ((found, layout),) = started.calls
    assert found is opened
    assert layout.batch_size == 1
    admits.reason = "its guests restart"
    with pytest.raises(NotReadyError, match="model 'm' cannot serve: its guests restart"):
        admits.start(opened)
    assert len(started.calls) == 1
