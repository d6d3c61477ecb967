"""Tensors of any size between the two halves of the exchange: what one side writes the other reads, in a block or not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naiad_stub import wire
from naiad_stub.blocks import OutputBlocks
from naiad_stub.calls import CallTexts, HostCalls, pack_call
from naiad_stub.exceptions import TritonModelException
from naiad_stub.exchange import (
    Batch,
    BatchReader,
    RequestRecord,
    ResponseWriter,
    TensorWriter,
    error_entry,
    responses_frame,
)
from naiad_stub.messages import ReleaseOutputs
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.segment import Segment
from naiad_stub.tensor import Tensor

from naiad.core.errors import OutOfMemoryError
from naiad.guests.calls import CallDecoder, write_result
from naiad.guests.exchange import ModelInterface, read_responses, write_execute
from naiad.guests.memory.instance import InstanceMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor
from naiad.protocol.request_plan import RequestPlan

LIMIT = wire.INLINE_LIMIT
NAMES = ("A", "B", "C")
SIZES = st.one_of(st.sampled_from([0, 1, 63, 64, 65, LIMIT - 64, LIMIT - 1, LIMIT, LIMIT + 1]), st.integers(0, 3000))
ARRAYS = st.lists(SIZES, max_size=len(NAMES)).map(
    lambda sizes: [(np.arange(size) + index).astype(np.uint8) for index, size in enumerate(sizes)]
)


class Pair:
    """The memory of an instance as both sides see it."""

    def __init__(self) -> None:
        self.memory = InstanceMemory("pair", capacity=1 << 28)
        self.outputs = Segment(self.memory.output_descriptor, self.memory.output_capacity)
        self.blocks = OutputBlocks(self.outputs, SimpleNamespace(add_handler=lambda message_class, handler: None))
        self.interface = ModelInterface(
            RequestPlan(model_name="m", model_version=1, input_names=NAMES, output_names=NAMES)
        )
        self.reader = BatchReader(self.memory.inputs.view, NAMES, NAMES)
        self.writer = ResponseWriter(self.blocks, NAMES, lambda notice: None)

    def take_returned(self) -> int:
        """Give the guest its output blocks back; how many there were."""
        count = len(self.memory.released)
        self.blocks._on_release(ReleaseOutputs(list(self.memory.released)))
        self.memory.released.clear()
        return count


@pytest.fixture(scope="module")
def pair():
    made = Pair()
    yield made
    made.outputs.close()
    made.memory.close()


def laid_out(arrays) -> int:
    """Bytes that they take one behind the other, each at a multiple of 64; 0 where they have none."""
    end = 0
    for array in arrays:
        end = -(-end // 64) * 64 + array.size
    return end if any(array.size for array in arrays) else 0


def contents(tensors) -> list[tuple[str, list[int]]]:
    return [(tensor.name(), tensor.as_numpy().tolist()) for tensor in tensors]


def named(arrays) -> list[tuple[str, list[int]]]:
    return [(name, array.tolist()) for name, array in zip(NAMES, arrays, strict=False)]


@given(batch=st.lists(ARRAYS, min_size=1, max_size=4))
def test_requests_reach_the_guest(pair, batch):
    requests = [
        InferRequest(
            "m",
            1,
            [
                InputTensor(name, Datatype.UINT8, array.shape, array.tobytes())
                for name, array in zip(NAMES, arrays, strict=False)
            ],
        )
        for arrays in batch
    ]

    frame, block = write_execute(
        7, [(key, request, None) for key, request in enumerate(requests)], pair.interface, pair.memory
    )
    read = pair.reader.read(frame[wire.FRAME.size :])

    assert (read.number, [record.key for record in read.records]) == (7, list(range(len(batch))))
    assert [contents(request.inputs()) for request in read.requests] == [named(arrays) for arrays in batch]
    size = laid_out(batch[0]) if len(batch) == 1 else sum(-(-laid_out(arrays) // 64) * 64 for arrays in batch)
    assert (block >= 0, read.borrowed is not None) == (size > LIMIT, size > LIMIT)
    for request in read.requests:  # as a model may do, which spoils nobody else's
        for tensor in request.inputs():
            tensor.as_numpy()[:] = 0
    if block >= 0:
        pair.memory.inputs.release(block)
    assert pair.memory.inputs.in_use == 0


@given(arrays=ARRAYS, ahead=st.integers(0, 200))
def test_requests_that_were_read_into_the_segment_reach_the_guest(pair, arrays, ahead):
    place = 4096 * -(-(sum(array.size for array in arrays) + ahead + 64) // 4096) if arrays else 0
    request = landed(pair.memory, arrays, ahead)
    fits = [sum(array.size for array in arrays[:index]) for index in range(len(arrays))]
    is_sent_from_there = bool(arrays) and all(start % 64 == 0 for start in fits)

    frame, block = write_execute(7, [(1, request, None)], pair.interface, pair.memory)
    read = pair.reader.read(frame[wire.FRAME.size :])

    assert contents(read.requests[0].inputs()) == named(arrays)
    in_use = pair.memory.input_byte_size
    if is_sent_from_there:
        assert block >= 0
        assert in_use == place, "something was copied"
    again, other = write_execute(8, [(1, request, None)], pair.interface, pair.memory)
    assert block < 0 or other != block, "the guest may have written to the first"
    assert contents(pair.reader.read(again[wire.FRAME.size :]).requests[0].inputs()) == named(arrays)
    for sent in (block, other):
        if sent >= 0:
            pair.memory.release_input(sent)
    assert pair.memory.input_byte_size == place, "its request may be read again"
    del request
    assert pair.memory.input_byte_size == 0


def landed(memory, arrays, ahead) -> InferRequest:
    """A request for arrays that were read into the segment, behind *ahead* other bytes."""
    body = bytes(ahead) + b"".join(array.tobytes() for array in arrays)
    place = memory.reservations.reserve(len(body), ahead)
    place[:] = body
    tensors = []
    for name, array in zip(NAMES, arrays, strict=False):
        tensors.append(InputTensor(name, Datatype.UINT8, array.shape, place[ahead : ahead + array.size]))
        ahead += array.size
    return InferRequest("m", 1, tensors)


def test_a_request_read_into_the_segment_of_one_guest_may_go_to_another(pair):
    other = InstanceMemory("other", capacity=1 << 28)
    array = np.arange(5000) % 251
    request = landed(other, [array.astype(np.uint8)], 10)
    other.close()

    frame, block = write_execute(1, [(1, request, None)], pair.interface, pair.memory)
    read = pair.reader.read(frame[wire.FRAME.size :])

    assert contents(read.requests[0].inputs()) == [("A", array.tolist())]
    pair.memory.release_input(block)
    assert pair.memory.input_byte_size == 0
    del request
    assert other.input_byte_size == 0


def test_a_request_with_others_is_copied_to_them(pair):
    arrays = [np.full(2000, number, np.uint8) for number in range(3)]
    requests = [landed(pair.memory, [array], 30) for array in arrays]

    frame, block = write_execute(
        1, [(key, request, None) for key, request in enumerate(requests)], pair.interface, pair.memory
    )
    read = pair.reader.read(frame[wire.FRAME.size :])

    assert [contents(request.inputs()) for request in read.requests] == [[("A", array.tolist())] for array in arrays]
    del requests
    pair.memory.release_input(block)
    assert pair.memory.input_byte_size == 0


def test_incomplete_requests_fill_at_most_an_eighth_of_the_segment(pair):
    place = pair.memory.reservations.reserve(pair.memory.inputs.capacity // 8 - (1 << 20), 0)
    assert place is not None
    assert pair.memory.reservations.reserve(1 << 21, 0) is None
    del place
    assert pair.memory.reservations.reserve(1 << 21, 0) is not None
    assert pair.memory.input_byte_size == 0


@given(batch=st.lists(ARRAYS, min_size=1, max_size=4))
def test_responses_reach_the_host(pair, batch):
    frame, _ = write_execute(
        1, [(key, InferRequest("m", 1, []), None) for key in range(len(batch))], pair.interface, pair.memory
    )
    read = pair.reader.read(frame[wire.FRAME.size :])
    entries = []
    for record, arrays in zip(read.records, batch, strict=True):
        tensors = [Tensor(name, array) for name, array in zip(NAMES, arrays, strict=False)]
        entry, size = pair.writer.response(record, InferenceResponse(tensors), wire.FINAL)
        assert size == laid_out(arrays)
        entries.append(entry)

    responses = read_responses(
        responses_frame(read, entries, wire.DONE, 9)[wire.FRAME.size :], pair.interface, pair.memory
    ).responses

    assert [[(output.name, list(bytes(output.data))) for output in each.response.outputs] for each in responses] == [
        named(arrays) for arrays in batch
    ]
    assert pair.take_returned() == sum(laid_out(arrays) > LIMIT for arrays in batch)


@given(arrays=ARRAYS)
def test_calls_reach_the_host(pair, arrays):
    tensors = [Tensor(name, array) for name, array in zip(NAMES, arrays, strict=False)]
    request = InferenceRequest(model_name="other", requested_output_names=["X"], inputs=tensors, request_id="me")

    frame = pack_call(request, CallTexts(request), 3, 0, TensorWriter(pair.blocks, ()).write(tensors))
    call = CallDecoder("m").read(frame[wire.FRAME.size :], pair.memory)

    assert (call.number, call.request.model_name, call.request.request_id) == (3, "other", "me")
    assert [(tensor.name, list(bytes(tensor.data))) for tensor in call.request.inputs] == named(arrays)
    assert pair.take_returned() == (laid_out(arrays) > LIMIT)


def test_a_call_that_cannot_be_sent_leaves_no_block_behind(pair):
    channel = SimpleNamespace(handlers={}, add_handler=lambda message_class, handler: None, release_input=print)
    desk = HostCalls(channel, pair.blocks, pair.memory.inputs.view, bool)
    desk.is_open = True
    tensors = [Tensor("A", np.zeros(LIMIT + 1, np.uint8))]
    request = InferenceRequest(model_name="m" * 65535, requested_output_names=[], inputs=tensors)

    with pytest.raises(TritonModelException, match="names of models may have at most 65534 bytes"):
        desk.exec(request, decoupled=False)

    assert pair.blocks._segment.in_use == 0


def test_a_long_name_of_a_tensor_is_cut_between_characters(pair):
    tensors = [Tensor("a" + "é" * 40_000, np.zeros(1, np.uint8))]
    request = InferenceRequest(model_name="other", requested_output_names=[], inputs=tensors)

    frame = pack_call(request, CallTexts(request), 3, 0, TensorWriter(pair.blocks, ()).write(tensors))
    call = CallDecoder("m").read(frame[wire.FRAME.size :], pair.memory)

    assert [tensor.name for tensor in call.request.inputs] == ["a" + "é" * 32_766]


@given(arrays=ARRAYS)
def test_results_of_calls_reach_the_guest(pair, arrays):
    outputs = [
        OutputTensor(name, Datatype.UINT8, array.shape, array.tobytes())
        for name, array in zip(NAMES, arrays, strict=False)
    ]
    given_back: list[int] = []
    channel = SimpleNamespace(
        handlers={},
        add_handler=lambda message_class, handler: None,
        release_input=given_back.append,
        release_small_input=given_back.append,
    )
    desk = HostCalls(channel, pair.blocks, pair.memory.inputs.view, bool)

    frame = write_result(5, InferResponse("m", 1, "", outputs), True, pair.memory)
    response, size = desk._read(frame[wire.FRAME.size :])

    assert contents(response.output_tensors()) == named(arrays)
    assert size == laid_out(arrays)
    for tensor in response.output_tensors():
        tensor.as_numpy()[:] = 0
    assert len(given_back) == (size > LIMIT)
    for block in given_back:
        pair.memory.inputs.release(block)
    assert pair.memory.inputs.in_use == 0


def test_an_output_without_room_is_reported_with_its_size_and_a_small_one_needs_no_room(pair):
    inputs = pair.memory.inputs
    everything = inputs.allocate(inputs.capacity)
    in_use = rf"\({inputs.capacity} of {inputs.capacity} bytes in use\)"

    def tensor(kind, size):
        return kind("A", Datatype.UINT8, (size,), bytes(size))

    def ask(size):
        return write_execute(
            1, [(1, InferRequest("m", 1, [tensor(InputTensor, size)]), None)], pair.interface, pair.memory
        )

    def answer(size):
        return write_result(1, InferResponse("m", 1, "", [tensor(OutputTensor, size)]), True, pair.memory)

    assert ask(LIMIT)[1] < 0
    assert answer(LIMIT).endswith(bytes(LIMIT))
    with pytest.raises(
        OutOfMemoryError, match=f"inputs of 1025 bytes do not fit into the input segment of 'm' {in_use}"
    ):
        ask(LIMIT + 1)
    caller = "the model that called for it"
    with pytest.raises(OutOfMemoryError, match=f"a response of 1025 bytes does not fit into .* of {caller} {in_use}"):
        answer(LIMIT + 1)
    inputs.release(everything)


def test_many_long_responses_are_divided_among_messages_and_the_last_one_ends_the_batch(pair):
    batch = Batch(7, -1, None)
    entries = [error_entry(key, 1, "x" * 60_000, wire.FINAL) for key in range(300)]
    frames = wire.FrameReader(wire.MAX_GUEST_FRAME).feed(responses_frame(batch, entries, wire.DONE, 9))
    read = [read_responses(payload, pair.interface, pair.memory) for _, payload in frames]
    assert len(read) == 3
    assert [each.done for each in read] == [False, False, True]
    assert [response.key for each in read for response in each.responses] == list(range(300))


def test_parameters_that_are_too_long_fail_only_their_response(pair):
    response = InferenceResponse([], parameters={"long": "x" * wire.MAX_PARAMETERS})
    with pytest.raises(
        TritonModelException, match=r"the parameters of a response have \d+ bytes; at most 4194304 can be"
    ):
        pair.writer.response(RequestRecord(1, [], Batch(7, -1, None)), response, wire.FINAL)
