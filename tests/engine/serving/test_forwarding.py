"""Requests that a guest gets as they came: which are, and what becomes of them when anything rare happens."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from engine.submitting import submit
from fakes.guests import launch_spec
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.core.errors import GuestExitedError, NaiadError
from naiad.engine.open_request import ForwardedRequest, OpenRequest
from naiad.engine.response_cache import ResponseCache
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.forwarding import Forwarding
from naiad.engine.serving.requests_in_flight import RequestsInFlight
from naiad.engine.serving.warmup import WarmUp
from naiad.guests.exchange import ExecutingBatch, SingleResponse
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor

PLAIN = """
name: "m" backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
"""
DATA = bytes(range(8))
KEY = "a layout"


class Guest:
    """A worker that executes nothing; the test ends its batches."""

    free_since = 0
    spec = launch_spec()

    def __init__(self) -> None:
        self.batches: dict[int, ExecutingBatch] = {}
        self.open: set[int] = set()
        self.forwarded: list[tuple[int, bytes, bytes]] = []
        self.executed: list[tuple[int, InferRequest]] = []
        self.cancelled: list[int] = []

    def forward(
        self, key: int, request_id: bytes, layout: bytes, inputs: bytes, size: int, now: int, context: bytes
    ) -> None:
        assert context == b""
        self.forwarded.append((key, request_id, inputs))
        self._begin(key, size, now)

    def execute(self, batch: Any, size: int) -> None:
        ((key, request, _),) = batch
        self.executed.append((key, request))
        self._begin(key, size, 1)

    def _begin(self, key: int, size: int, now: int) -> None:
        self.open.add(key)
        self.batches[key] = ExecutingBatch((key,), -1, now, size)

    def cancel(self, keys: list[int]) -> None:
        self.cancelled += keys


class Source:
    """Where the requests come from; remembers what becomes of them."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.responses: list[tuple[int, tuple[str, int], object, bytes]] = []
        self.errors: list[tuple[int, NaiadError]] = []

    def request_of(self, forwarded: ForwardedRequest) -> InferRequest:
        self.made.append(forwarded.number)
        tensors = [InputTensor("IN", Datatype.FP32, (2,), forwarded.inputs)]
        return InferRequest("m", -1, tensors, forwarded.request_id.decode(), layout_key=KEY)

    def sink_of(self, number: int) -> Any:
        source = self

        class Sink:
            def send(self, response: Any, final: bool) -> None:
                assert final
                source.errors.append((number, response.error))

        return Sink()

    def respond(self, number: int, model: tuple[str, int], layout: Any, outputs: bytes) -> None:
        self.responses.append((number, model, layout, outputs))


class Version:
    """Admission, in_flight and forwarding of a model, as `ModelVersion` has them, with one guest."""

    def __init__(self, config: str = PLAIN) -> None:
        self.config = freeze(text_format.Parse(config, pb.ModelConfig()))
        keys = itertools.count(1)
        self.in_flight = RequestsInFlight(self.config, 1, keys, WarmUp((), keys))
        self.admission = Admission(compile_plan(self.config, 1, 1), self.in_flight.start, self.in_flight.statistics)
        self.guest = Guest()
        self.source = Source()
        self.in_flight.add_guest(self.guest)
        self.forwarding = Forwarding(self.admission, self.in_flight)

    def check_layout(self) -> Any:
        """Have a request of the layout take the long way, and fail."""
        request = self.source.request_of(ForwardedRequest(self.source, 0, b"", DATA))
        opened = submit(self.admission, request, self.source.sink_of(0))
        self.in_flight.fail_all(NaiadError("it fails"))
        self.end(opened.key)
        self.source.made.clear()
        self.source.errors.clear()
        return self.forwarding.known_layout(KEY, len(DATA))

    def forward(self, number: int, layout: Any) -> OpenRequest | None:
        return self.forwarding.forward(ForwardedRequest(self.source, number, b"id", DATA), layout)

    def end(self, key: int, took: int = 1000) -> None:
        """The guest has answered a request."""
        batch = self.guest.batches.pop(key)
        self.guest.open.discard(key)
        started = batch.sent + 10
        response = SingleResponse(key, key, started, started + took, "layout", b"outputs")
        self.in_flight.on_forwarded_response(self.guest, response, batch)


@pytest.fixture
def version() -> Version:
    return Version()


def test_a_layout_is_known_once_a_request_was_checked(version):
    assert version.forwarding.known_layout(KEY, len(DATA)) is None
    assert version.check_layout() is not None
    assert version.forwarding.known_layout(KEY, len(DATA) + 1) is None
    assert version.forwarding.known_layout("another", len(DATA)) is None


def test_bytes_go_to_the_guest_and_back_without_a_request_being_made(version):
    layout = version.check_layout()
    opened = version.forward(7, layout)
    assert version.guest.forwarded == [(opened.key, b"id", DATA)]
    version.end(opened.key)
    assert version.source.responses == [(7, ("m", 1), "layout", b"outputs")]
    assert version.source.made == []
    assert len(version.in_flight) == 0


def test_requests_are_counted_like_all_others(version):
    version.end(version.forward(7, version.check_layout()).key, took=100)  # less than the test itself takes
    found = version.in_flight.statistics.value("m", "1", 0, (), 0)
    # The one that had its layout checked was executed, too, and has failed.
    assert (found.inference_count, found.execution_count, found.success.count, found.fail.count) == (1, 2, 1, 1)
    assert found.success.ns > 100


def test_the_load_is_noted_when_a_forwarded_request_was_answered(version):
    layout = version.check_layout()
    noted = []
    version.in_flight.observe_load(noted.append)
    version.in_flight.typical = 1600
    version.end(version.forward(7, layout).key, took=2000)
    assert (noted, version.in_flight.typical) == ([0], 1700)


def test_a_request_that_cannot_be_forwarded_takes_the_long_way(version, caplog):
    layout = version.check_layout()
    forward, version.guest.forward = version.guest.forward, lambda *_: 1 // 0
    assert version.forward(7, layout) is None
    assert "cannot forward a request to 'm_0_0'" in caplog.text
    assert len(version.in_flight) == 0
    version.guest.forward = forward
    assert version.forward(8, layout), "the guest is idle still"


def test_a_request_without_a_free_guest_is_queued_and_not_forwarded(version):
    layout = version.check_layout()
    sent = [each for each in (version.forward(number, layout) for number in range(30)) if each]
    assert len(version.guest.forwarded) == len(sent) < 30
    assert version.forward(31, layout) is None


def test_requests_of_a_version_that_examines_them_are_not_forwarded(version):
    layout = version.check_layout()
    version.admission.reason = "it is being unloaded"
    assert version.forward(7, layout) is None
    version.admission.reason = ""
    assert version.forward(8, layout)
    version.admission.cache = object()
    assert version.forward(9, layout) is None


def test_a_request_behind_queued_ones_is_not_forwarded(version):
    layout = version.check_layout()
    while version.forward(1, layout):
        pass
    request = version.source.request_of(ForwardedRequest(version.source, 2, b"", DATA))
    submit(version.admission, request, version.source.sink_of(2))
    version.end(next(iter(version.guest.batches)))
    assert version.in_flight.dispatcher.waiting_count == 0
    assert version.forward(3, layout) is None


def test_a_cancelled_request_is_cancelled_in_the_guest(version):
    opened = version.forward(7, version.check_layout())
    opened.cancel()
    assert version.guest.cancelled == [opened.key]


def test_a_request_that_the_guest_had_not_begun_goes_to_another_one_as_an_ordinary_request(version):
    layout = version.check_layout()
    version.in_flight.forwarding_scheduler.set_depth(version.guest, 2)
    first, second = version.forward(8, layout), version.forward(9, layout)
    assert first
    assert second
    gone, version.guest = version.guest, Guest()
    version.in_flight.on_guest_exit(gone, GuestExitedError("it is gone"), 0.0)
    version.in_flight.add_guest(version.guest)
    ((number, error),) = version.source.errors
    assert (number, error.message) == (8, "it is gone")
    ((key, request),) = version.guest.executed
    assert (key, request.request_id, bytes(request.inputs[0].data)) == (second.key, "id", DATA)
    assert version.source.made == [8, 9]


@pytest.mark.parametrize(
    "more",
    [
        "max_batch_size: 4 dynamic_batching {}",
        "model_transaction_policy { decoupled: true }",
        "sequence_batching {}",
        'output { name: "RESHAPED" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }',
    ],
)
def test_models_whose_requests_need_more_work_have_no_forwarding(more):
    async def scheduler() -> object:
        config = freeze(text_format.Parse(PLAIN + more, pb.ModelConfig()))
        keys = itertools.count(1)
        return RequestsInFlight(config, 1, keys, WarmUp((), keys)).forwarding_scheduler

    assert asyncio.run(scheduler()) is None


def test_requests_of_a_model_with_a_cache_are_not_forwarded(version):
    layout = version.check_layout()
    assert not version.admission.looks_at_requests
    version.admission.cache = ResponseCache(1 << 20)
    assert version.forward(1, layout) is None
