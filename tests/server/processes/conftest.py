"""Both sides of a link between processes, on the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from server.processes.pair import Engine, Pair


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    for task in asyncio.all_tasks(made):
        task.cancel()
    made.run_until_complete(asyncio.sleep(0))
    made.close()


@pytest.fixture
def run_coroutine(loop: asyncio.AbstractEventLoop) -> Callable[[Coroutine[Any, Any, None]], None]:
    return lambda test: loop.run_until_complete(asyncio.wait_for(test, 30))


@pytest.fixture
def engine() -> Engine:
    """The owner's engine; tests with another one have a parameter of this name."""
    return Engine()


@pytest.fixture
def pair(loop: asyncio.AbstractEventLoop, engine: Engine) -> Iterator[Pair]:
    async def make() -> Pair:
        return Pair(engine)

    made = loop.run_until_complete(make())
    yield made
    made.close()
