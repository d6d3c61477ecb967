"""What a frontend process calls of the owner."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any

import pytest
from server.processes.pair import Engine, Pair

from naiad.core.errors import NaiadError
from naiad.server.processes.messages import FrameKind


class Unloading(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    async def unload(self, name, *, unload_dependents):
        self.events.append(f"begins {name}")
        await asyncio.sleep(0.01)
        self.events.append(f"ended {name}")


@pytest.fixture
def engine():
    return Unloading()


async def test_an_unload_continues_when_the_process_that_requested_it_exits(pair, engine):
    asking = asyncio.ensure_future(pair.remote.unload("m"))
    await pair.settle(lambda: engine.events)
    pair.process.close()
    await pair.settle(lambda: len(engine.events) == 2)
    assert engine.events == ["begins m", "ended m"]
    asking.cancel()


async def test_a_result_leaves_at_once_and_a_notification_has_none(pair: Pair) -> None:
    """The process that called may block until it has the result."""
    result = pair.remote.call("is_live")
    pair.link.flush()
    pair.owner.receive()
    pair.link.receive()
    assert result.done()
    one, other = socket.socketpair()
    with one, other:
        pair.process.calls.notify_with(one.fileno(), "connections")
    pair.process.calls.notify("ping")
    assert await pair.process.calls.call("ping") is None
    assert pair.kinds == [FrameKind.CALL, FrameKind.RESULT]
    assert pair.remote.connections is not None
    pair.remote.connections.close()


async def test_a_call_that_waits_is_kept_until_it_has_ended(pair: Pair) -> None:
    waiting: list[weakref.ref[asyncio.Future[int]]] = []

    async def wait() -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        return await future

    pair.process.calls.services["wait"] = wait
    result = pair.remote.call("wait")
    await pair.settle(lambda: waiting)
    gc.collect()
    future = waiting[0]()
    assert future is not None, "nothing but the call refers to it"
    future.set_result(5)
    assert await result == 5
    await pair.settle(lambda: not pair.process.calls._tasks)


async def test_errors_of_calls_whose_results_are_not_looked_at_are_not_reported(pair: Pair) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail() -> None:
        raise NaiadError("no")

    pair.process.calls.services["fail"] = fail
    pair.remote.call("fail")
    pair.remote.call("fail").cancel()
    await pair.settle(lambda: not pair.remote.coordinator.calls._open)
    await asyncio.sleep(0)
    assert reported == []
