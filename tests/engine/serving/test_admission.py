"""Admission: a request is checked once per form and load, and rejected before it is started."""

from __future__ import annotations

import pytest
from engine.submitting import submit

from naiad.core.errors import InvalidRequestError, NotReadyError
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
