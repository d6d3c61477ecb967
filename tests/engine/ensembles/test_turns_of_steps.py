"""Steps that wait for their turn (`max_inflight_requests`) behind steps that end before their `submit` returns."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.core.errors import Code
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
"""
DATA = bytes(8)
MANY = 2 * sys.getrecursionlimit()


def config(text: str):
    return freeze(text_format.Parse(text + TENSORS, pb.ModelConfig()))


class Member:
    """The model of the step: it holds its first request, and responds to all others at once, as from a cache."""

    config = config('name: "member" backend: "python"')
    number = 1
    device = 0

    def __init__(self) -> None:
        self.held: Any = None
        self.submitted = 0

    def submit(self, request: InferRequest, sink: Any, *, needs_idle: bool) -> int:
        assert not needs_idle
        self.submitted += 1
        if self.held is None:
            self.held = sink
        else:
            self.respond(sink)
        return self.submitted

    def respond(self, sink: Any) -> None:
        outputs = [OutputTensor("OUT", Datatype.FP32, (2,), DATA)]
        sink.send(InferResponse("member", 1, "", outputs), True)

    def is_waiting(self, key: int) -> bool:
        return False

    def waits_of(self, key: int) -> list:
        return [["a guest"]]


class Members:
    def __init__(self, member: Member) -> None:
        self.member = member

    def find(self, name: str, version: int) -> Member:
        return self.member


class Replies:
    """Gets the responses to one request."""

    def __init__(self) -> None:
        self.responses: list[tuple[InferResponse, bool]] = []

    def send(self, response: InferResponse, final: bool) -> None:
        self.responses.append((response, final))


def ensemble(member: Member, on_waiting=lambda _: None) -> EnsembleVersion:
    graph = EnsembleGraph(
        name="limited",
        steps=(EnsembleStep(model="member", version=-1, inputs=(("IN", "IN"),), outputs={"OUT": "OUT"}),),
        inputs=("IN",),
        outputs=("OUT",),
    )
    message = 'name: "limited" platform: "ensemble" ensemble_scheduling { max_inflight_requests: 1 }'
    return EnsembleVersion(config(message), 1, graph, Members(member), on_waiting)


def submit(version: EnsembleVersion, count: int) -> tuple[list[int], list[Replies]]:
    replies = [Replies() for _ in range(count)]
    request = InferRequest("limited", -1, [InputTensor("IN", Datatype.FP32, (2,), DATA)])
    return [version.submit(request, each) for each in replies], replies


async def until_idle(version: EnsembleVersion) -> None:
    while version.is_finishing_requests():
        await asyncio.sleep(0)


def test_any_number_of_waiting_steps_may_end_at_once():
    asyncio.run(end_many_at_once())


async def end_many_at_once() -> None:
    member = Member()
    version = ensemble(member)
    _, replies = submit(version, MANY)
    assert member.submitted == 1

    member.respond(member.held)
    assert member.submitted < MANY  # the loop serves others in between
    await until_idle(version)

    assert [len(each.responses) for each in replies] == [1] * MANY
    assert all(response.error is None and final for each in replies for response, final in each.responses)


def test_a_step_is_cancelled_that_is_submitted_in_a_later_turn_of_the_loop():
    asyncio.run(cancel_the_next_one())


async def cancel_the_next_one() -> None:
    member = Member()
    version = ensemble(member)
    keys, replies = submit(version, 200)
    member.respond(member.held)
    unanswered = [number for number, each in enumerate(replies) if not each.responses]
    next_one = unanswered[0]
    assert version.is_waiting(keys[next_one])
    assert version.waits_of(keys[next_one]) == [()]

    version.cancel(keys[next_one])
    await until_idle(version)

    ((response, final),) = replies[next_one].responses
    assert final
    assert response.error is not None
    assert response.error.code is Code.CANCELLED
    assert member.submitted == len(replies) - 1
    assert all(len(each.responses) == 1 for each in replies)
