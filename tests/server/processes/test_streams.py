"""Streams of responses on their way to a frontend process: shares of the loop, and clients that have left."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest
from server.processes.pair import Pair

from naiad.core.errors import Code, NaiadError
from naiad.core.turns import SHARE_SECONDS
from naiad.guests.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.guests.tensors import TensorLayout
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferResponse, OutputTensor


def responses_of(pair: Pair, number: int, count: int, *, is_ended: bool = True) -> None:
    """Have the owner's side send responses, and the end after them."""
    outputs = [OutputTensor("X", Datatype.UINT8, (4,), b"abcd")]
    for _ in range(count):
        pair.session.sink_of(number).send(InferResponse("m", 1, "", outputs, layout="a layout"), False)
    if is_ended:
        pair.session.sink_of(number).send(None, True)


async def test_responses_that_are_on_their_way_to_a_client_that_has_left_are_dropped(pair: Pair) -> None:
    left, other = pair.sink(1), pair.sink(2)
    responses_of(pair, 1, 20)
    responses_of(pair, 2, 20)
    pair.opened[1].cancel()
    await pair.settle(lambda: len(other.responses) == 21)
    assert left.responses == [None], "the end alone"
    assert (left.ends, other.ends) == (1, 1)
    assert all(opened.is_ended for opened in pair.opened.values())
    assert pair.held.abandoned == 0


@pytest.mark.parametrize("kind", ["joined", "forwarded", "the end alone"])
async def test_a_dropped_response_that_lends_nothing_releases_nothing(pair: Pair, kind: str) -> None:
    released: list[int] = []
    pair.remote.requests._release = released.append  # type: ignore[method-assign]
    sink = pair.sink(1)
    pair.opened[1].drop_responses()
    if kind == "forwarded":
        layout = TensorLayout([("X", Datatype.UINT8, (4,), 0, 4)], 4)
        pair.session.respond_forwarded(1, ("m", 1), layout, b"abcd")
    else:
        responses_of(pair, 1, kind == "joined")
    await pair.settle(lambda: sink.ends)
    assert (sink.responses, released) == ([None], [])


async def test_a_response_without_outputs_lends_nothing(pair: Pair) -> None:
    sink = pair.sink(1)
    pair.session.sink_of(1).send(InferResponse("m", 1, layout="a layout"), True)
    assert not pair.session._lent
    await pair.settle(lambda: sink.responses)
    (response,) = sink.responses
    assert response is not None
    assert (response.model_name, list(response.outputs)) == ("m", [])


@pytest.mark.parametrize("size", [4, COPY_LIMIT // 2, COPY_LIMIT // 2 + 1])
@pytest.mark.parametrize("layout", ["a layout", None])
@pytest.mark.parametrize("places", ["PP", "PMP", "MPP", "MM"])
async def test_outputs_come_from_messages_and_from_memory_which_is_lent_until_all_of_them_are_dropped(
    pair: Pair, size: int, layout: str | None, places: str
) -> None:
    guest = InstanceMemory("guest", capacity=1 << 24, shared=pair.memory)
    guest.outputs[: 4 * size] = bytes(range(1, 5)) * size
    outputs, start = [], 0
    for number, place in enumerate(places):
        data: Buffer = guest.borrow(start, start, start + size) if place == "P" else bytes([number]) * 3
        outputs.append(OutputTensor(f"Y{number}", Datatype.UINT8, (len(data),), data))
        start += size * (place == "P")
    expected = [bytes(each.data) for each in outputs]
    sink = pair.sink(1)
    parameters = {} if layout else {"p": 7}
    response = InferResponse("m", 1, "id 1", outputs, parameters, layout=layout)
    pair.session.sink_of(1).send(response, True)
    del outputs, data, response
    await pair.settle(lambda: sink.responses)
    (found,) = sink.responses
    assert found is not None
    assert found.parameters == parameters
    assert [(each.name, each.shape) for each in found.outputs] == [
        (f"Y{number}", (len(data),)) for number, data in enumerate(expected)
    ]
    assert [bytes(each.data) for each in found.outputs] == expected
    if "P" in places and 2 * size > COPY_LIMIT:
        released: list[int] = []
        release = pair.remote.requests._release
        pair.remote.requests._release = released.append  # type: ignore[method-assign]
        kept = [each for each, place in zip(found.outputs, places, strict=True) if place == "P"]
        del found
        sink.responses.clear()
        kept.pop()
        assert released == [], "the other one is still referred to"
        kept.clear()
        assert released == [1]
        release(1)
    await pair.settle(lambda: not (guest.borrowed_count or pair.session._lent))
    guest.close()


async def test_an_error_that_ends_a_request_whose_client_has_left_is_passed_on(pair: Pair) -> None:
    sink = pair.sink(1)
    pair.opened[1].cancel()
    error = InferResponse("m", 1, error=NaiadError("Request was cancelled", code=Code.CANCELLED))
    pair.session.sink_of(1).send(error, True)
    await pair.settle(lambda: sink.responses)
    (response,) = sink.responses
    assert response is not None
    assert response.error is not None
    assert response.error.message == "Request was cancelled"
    assert pair.held.abandoned == 0


async def test_memory_that_a_guest_lent_is_returned_when_its_response_is_dropped(pair: Pair) -> None:
    guest = InstanceMemory("guest", capacity=1 << 24, shared=pair.memory)
    sink = pair.sink(1)
    pair.opened[1].cancel()
    for layout in (("known",), None):  # without one, the response is described in full
        outputs = [OutputTensor("X", Datatype.UINT8, (4,), guest.borrow(0, 0, 4))]
        pair.session.sink_of(1).send(InferResponse("m", 1, "", outputs, layout=layout), False)
        del outputs
        assert guest.borrowed_count == 1
        await pair.settle(lambda: not guest.borrowed_count)
    assert not sink.responses
    guest.close()


async def test_the_numbers_of_lent_memory_begin_again_before_they_do_not_fit(pair: Pair) -> None:
    guest = InstanceMemory("guest", capacity=1 << 24, shared=pair.memory)
    sink = pair.sink(1)
    pair.session._token = 0xFFFFFFFE
    for count in (1, 2, 3):
        outputs = [OutputTensor("X", Datatype.UINT8, (4,), guest.borrow(0, 0, 4))]
        pair.session.sink_of(1).send(InferResponse("m", 1, "", outputs, layout="a layout"), False)
        del outputs
        await pair.settle(lambda count=count: len(sink.responses) == count and not guest.borrowed_count)
    assert pair.session._token == 2, "0 says that nothing is lent"
    guest.close()


@pytest.mark.parametrize("waits", [False, True], ids=["directly", "behind a call that blocked"])
async def test_many_responses_that_arrive_together_are_passed_on_in_shares(pair: Pair, waits: bool) -> None:
    def work() -> None:
        end = perf_counter() + SHARE_SECONDS / 4
        while perf_counter() < end:
            pass

    sink = pair.sink(1, work)
    responses_of(pair, 1, 200)
    pair.owner.flush()
    if waits:
        pair.remote.receive()
        assert not sink.responses
    at_once = []
    while len(sink.responses) < 201:
        before = len(sink.responses)
        await asyncio.sleep(0)
        at_once.append(len(sink.responses) - before)
    assert 2 <= max(at_once) <= 50
    assert sink.responses[-1] is None
