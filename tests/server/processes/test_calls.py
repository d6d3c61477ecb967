"""What a frontend process calls of the owner."""

from __future__ import annotations

import asyncio

from server.processes.pair import Engine, run


def test_an_unload_continues_when_the_process_that_requested_it_exits():
    events = []

    class Unloading(Engine):
        async def unload(self, name, *, unload_dependents):
            events.append(f"begins {name}")
            await asyncio.sleep(0.01)
            events.append(f"ended {name}")

    async def test(pair):
        asking = asyncio.ensure_future(pair.remote.unload("m"))
        await pair.settle(lambda: events)
        pair.session.close()
        await pair.settle(lambda: len(events) == 2)
        assert events == ["begins m", "ended m"]
        asking.cancel()

    run(test, Unloading())
