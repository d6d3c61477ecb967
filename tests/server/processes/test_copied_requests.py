"""A request whose inputs are copied in slices is sent behind others, in the order of its sequence, wherever it belongs."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from server.processes.pair import Pair, Sink, request

from naiad.core.errors import NaiadError, UnknownModelError
from naiad.guests.memory import unsent_frames
from naiad.guests.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor
from naiad.server.processes import request_link

LARGE = COPIED_AT_ONCE
"""Elements of FP32: four times what is copied in one piece."""


def share_inputs(pair: Pair) -> Any:
    """A version whose inputs the frontend's side may write to a segment."""
    pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    return pair.engine.version.shared_inputs


def ids(pair: Pair) -> list[str]:
    return [each.request_id for each in pair.engine.requests]


def numbered(elements: int) -> InferRequest:
    sent = request("m", elements)
    (tensor,) = sent.inputs
    data = bytes(range(256)) * (elements // 64)
    return replace(sent, inputs=[replace(tensor, data=data)])


async def test_other_requests_overtake_a_copied_request_and_its_bytes_arrive(pair: Pair) -> None:
    share_inputs(pair)
    sent = numbered(LARGE)
    pair.remote.submit(replace(sent, request_id="large"), Sink())
    pair.remote.submit(replace(request("m"), request_id="small"), Sink())
    await pair.settle(lambda: len(pair.engine.requests) == 2)
    assert ids(pair) == ["small", "large"]
    assert bytes(pair.engine.requests[1].inputs[0].data) == sent.inputs[0].data
    await pair.settle(lambda: not pair.held.requests)


async def test_a_turn_of_the_loop_copies_a_slice(pair: Pair) -> None:
    share_inputs(pair)
    pair.remote.submit(request("m", LARGE), Sink())
    for _ in range(15):  # of 1 MiB
        await asyncio.sleep(0)
        assert pair.held.copied == 1
    await pair.settle(lambda: pair.engine.requests)
    assert pair.held.copied == 0


@pytest.mark.parametrize("more", [0, 1])
async def test_inputs_of_few_bytes_are_copied_at_once(pair: Pair, more: int) -> None:
    share_inputs(pair)
    pair.remote.submit(request("m", COPIED_AT_ONCE // 4 + more), Sink())
    assert pair.held.copied == more
    await pair.settle(lambda: pair.engine.requests)


async def test_nothing_is_kept_of_a_process_that_has_exited(pair: Pair) -> None:
    share_inputs(pair)
    guest = InstanceMemory("guest", capacity=1 << 24, shared=pair.memory)
    sink = pair.sink(1)
    size = COPY_LIMIT + 4
    outputs = [OutputTensor("X", Datatype.UINT8, (size,), guest.borrow(0, 0, size))]
    pair.session.sink_of(1).send(InferResponse("m", 1, outputs=outputs), True)
    del outputs
    copied = Sink()
    await pair.settle(lambda: sink.responses)
    pair.remote.submit(request("m", LARGE), copied)
    pair.remote.requests.route_to(9, is_decoupled=False)
    before = pair.held
    assert all((before.requests, before.copied, before.routes, before.segments, before.input_bytes))
    pair.remote.coordinator.close()
    after = pair.held
    assert not any((after.requests, after.copied, after.routes, after.segments, after.input_bytes))
    assert not pair.remote.requests._counts
    assert [each and each.error and each.error.message for each in copied.responses] == ["Server exiting"]
    sink.responses.clear()
    assert not pair.link._lazy, "nobody is told that its memory is free"
    pair.process.close()
    assert (pair.session._lent, pair.session._open, pair.session._parts) == ({}, {}, {})
    assert not guest.borrowed_count
    guest.close()


async def test_requests_of_a_sequence_keep_their_order(pair: Pair) -> None:
    share_inputs(pair)
    for name, elements, sequence in (("1", LARGE, 5), ("2", 1, 5), ("none", 1, 0), ("3", LARGE, 5), ("4", 1, 5)):
        pair.remote.submit(replace(request("m", elements), request_id=name, correlation_id=sequence), Sink())
    await pair.settle(lambda: len(pair.engine.requests) == 5)
    assert ids(pair) == ["none", "1", "2", "3", "4"]


async def test_a_request_cancelled_while_it_is_copied_is_sent_and_then_cancelled(pair: Pair) -> None:
    share_inputs(pair)
    pair.engine.is_answering = False
    pair.remote.submit(request("m", LARGE), Sink()).cancel()
    await pair.settle(lambda: pair.engine.cancelled)
    assert len(pair.engine.requests) == 1


async def test_a_request_copied_during_a_change_of_version_is_sent_once_and_its_block_is_freed(pair: Pair) -> None:
    old = share_inputs(pair)
    sink = Sink()
    pair.remote.submit(numbered(LARGE), sink)
    pair.engine.version.number += 1
    pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.session.on_routes_changed()
    await pair.settle(lambda: sink.responses)
    assert not pair.remote.requests._counts
    (found,) = pair.engine.requests
    assert bytes(found.inputs[0].data) == numbered(LARGE).inputs[0].data
    assert pair.session.received_count == 1
    del found
    pair.engine.requests.clear()  # which refer to the inputs in the new segment
    await pair.settle(lambda: not pair.held.input_bytes)
    old.close()


async def test_the_part_of_a_version_that_has_ended_is_unmapped_without_a_change_of_routes(pair: Pair) -> None:
    shared, requests, sinks = share_inputs(pair), pair.remote.requests, [Sink(), Sink()]
    pair.remote.submit(numbered(1 << 10), sinks[0])
    await pair.settle(lambda: sinks[0].responses)
    assert requests.part_of(1) is not None
    assert pair.held.input_bytes  # the engine refers to them
    shared.close()
    await pair.settle(lambda: requests.part_of(1) is None)
    assert not pair.held.input_bytes
    pair.engine.version.shared_inputs = None
    pair.remote.submit(numbered(1 << 10), sinks[1])
    await pair.settle(lambda: sinks[1].responses)
    assert bytes(pair.engine.requests[1].inputs[0].data) == numbered(1 << 10).inputs[0].data


async def test_a_request_whose_model_is_unloaded_while_it_is_copied_is_rejected(pair: Pair) -> None:
    share_inputs(pair)
    errors: list[NaiadError] = []

    class Rejectable(Sink):
        def reject(self, error: NaiadError) -> None:
            errors.append(error)

    sink, plain = Rejectable(), Sink()
    pair.remote.submit(request("m", LARGE), sink)
    pair.remote.submit(request("m", LARGE), plain)
    pair.engine.refusal = UnknownModelError("Request for unknown model: 'm' is not found")
    pair.session.on_routes_changed()
    await pair.settle(lambda: errors and plain.responses)
    assert [type(error) for error in errors] == [UnknownModelError]
    assert [type(each.error) for each in plain.responses] == [UnknownModelError]
    assert (pair.held.input_bytes, pair.held.requests) == (0, 0)


async def test_pages_of_a_copied_request_are_returned_in_slices_after_a_pause(pair: Pair) -> None:
    share_inputs(pair)
    sinks = [Sink() for _ in range(4)]
    for sink in sinks:
        pair.remote.submit(request("m", 4 * LARGE), sink)
    await pair.settle(lambda: all(sink.responses for sink in sinks))
    pair.engine.requests.clear()  # which refer to the inputs
    await pair.settle(lambda: not pair.held.input_bytes)
    assert not pair.remote.trim()  # there were requests since it was called last
    turns = 1
    while pair.remote.trim():
        turns += 1
    assert turns > 1


@pytest.mark.parametrize("is_copied", [True, False], ids=["while it is copied", "when it is sent"])
async def test_a_fault_while_a_request_is_copied_rejects_the_request_and_frees_its_block(
    pair: Pair, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Exception] = []

    def faulty(*_: Any) -> Any:
        faults.append(struct.error("a fault of the test"))
        raise faults[-1]

    share_inputs(pair)
    with monkeypatch.context() as patched:
        if is_copied:
            patched.setattr(unsent_frames, "_copy", faulty)
        else:
            patched.setattr(request_link, "SHORT_REQUEST_FRAME", SimpleNamespace(pack=faulty))
        sink = Sink()
        pair.remote.submit(request("m", LARGE), sink)
        await pair.settle(lambda: sink.responses)
    (response,) = sink.responses
    assert response is not None
    assert response.error is not None
    action = "copy the inputs of the request to 'm'" if is_copied else "submit the request to 'm'"
    cause = "unexpected struct.error: a fault of the test; see the log of the server"
    assert response.error.message == f"cannot {action}: {cause}"
    held = pair.held
    assert (held.input_bytes, held.requests, held.copied) == (0, 0, 0)
    later = Sink()
    pair.remote.submit(request("m", LARGE), later)
    await pair.settle(lambda: later.responses)
    assert len(pair.engine.requests) == 1


@pytest.mark.parametrize("elements", [1, 1000], ids=["in the message", "in the part"])
async def test_a_small_request_that_cannot_be_sent_is_refused_and_frees_its_block(
    pair: Pair, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: Any) -> Any:
        raise struct.error("a fault of the test")

    share_inputs(pair)
    with monkeypatch.context() as patched:
        patched.setattr(request_link, "SHORT_REQUEST_FRAME", SimpleNamespace(pack=faulty))
        with pytest.raises(NaiadError, match=r"cannot submit the request to 'm': unexpected struct.error: a fault"):
            pair.remote.submit(request("m", elements), Sink())
    assert (pair.held.input_bytes, pair.held.requests) == (0, 0)
