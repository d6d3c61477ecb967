"""Loads and unloads in their order, without guests."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

from naiad.engine.loading.load_order import LoadOrder
from naiad.engine.registry import Registry


def lock_count() -> int:
    return sum(isinstance(each, asyncio.Lock) for each in gc.get_objects())


def test_unloads_of_models_that_do_not_exist_leave_nothing_behind():
    """Any client may send them, with any name."""
    loads = SimpleNamespace(needs={}, ensembles={}, unload=lambda _: [])
    order = LoadOrder(None, loads, Registry())

    async def unload(count):
        for number in range(count):
            await order.unload(f"none-{number}", with_members=True)

    before = lock_count()
    asyncio.run(unload(100))
    assert lock_count() <= before


def test_an_unload_waits_for_the_one_before():
    done = []
    loads = SimpleNamespace(
        needs={"model": frozenset()}, ensembles={}, unload=lambda _: [asyncio.ensure_future(asyncio.sleep(0))]
    )
    order = LoadOrder(None, loads, Registry())

    async def unload_twice():
        async def unload(number):
            await order.unload("model", with_members=True)
            done.append(number)

        first = asyncio.ensure_future(unload(1))
        await asyncio.sleep(0)
        assert order.is_changing("model")
        await unload(2)
        assert first.done()

    asyncio.run(unload_twice())
    assert done == [1, 2]
