"""What a frontend process calls of the owner."""

from __future__ import annotations

import asyncio

import pytest
from server.processes.pair import Engine


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
