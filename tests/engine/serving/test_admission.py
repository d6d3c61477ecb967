"""Admission: a request is checked once per form and load, and rejected before it gets a key."""

from __future__ import annotations

import itertools

import pytest

from naiad.core.errors import InvalidRequestError, NotReadyError
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
    return Admission(of, started, itertools.count(1), Statistics()), started


def request(data: bytes = bytes(8), datatype: Datatype = Datatype.FP32, **more) -> InferRequest:
    return InferRequest("m", -1, [InputTensor("IN", datatype, (2,), data)], **more)


def test_requests_of_one_form_share_their_layout():
    admits, started = admission(plan(1))
    key = object()

    assert [admits.submit(request(bytes([n] * 8), layout_key=key), None) for n in (1, 2)] == [1, 2]
    assert admits.submit(request(), None, needs_idle=True) == 3

    first, second, third = (call[3] for call in started.calls)
    assert second is first
    assert third == first
    assert third is not first
    assert [call[4] for call in started.calls] == [False, False, True]


def test_a_form_that_fitted_one_load_is_checked_again_by_the_next():
    key = object()
    admission(plan(1))[0].submit(request(layout_key=key), None)
    again, started = admission(plan(2, dims=(3,)))

    with pytest.raises(InvalidRequestError, match="unexpected shape"):
        again.submit(request(layout_key=key), None)

    assert started.calls == []


def test_layouts_that_depend_on_the_bytes_are_never_shared():
    admits, _ = admission(plan(1, datatype=Datatype.BYTES))
    key = object()
    admits.submit(request(bytes(8), Datatype.BYTES, layout_key=key), None)

    with pytest.raises(InvalidRequestError, match="expected 2 string elements"):
        admits.submit(request(bytes(4), Datatype.BYTES, layout_key=key), None)


def test_a_version_that_cannot_serve_rejects_everything():
    admits, started = admission(plan(1))
    admits.reason = "it is being unloaded"

    with pytest.raises(NotReadyError, match=r"\[request id: 5\] model 'm' cannot serve: it is being unloaded"):
        admits.submit(request(request_id="5"), None)

    assert started.calls == []
