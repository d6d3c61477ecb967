"""Streams of responses on their way to a frontend process: shares of the loop, and clients that have left."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest
from server.processes.pair import Pair

from naiad.core.errors import Code, NaiadError
from naiad.core.turns import SHARE_SECONDS
from naiad.guests.memory.instance import InstanceMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor


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
    assert pair.held.abandoned == 0


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
