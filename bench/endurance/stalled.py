"""Clients that stop reading, and others that continue.

The server and the guests must buffer a bounded number of bytes for a client that does not read, and must send it the
complete stream when it reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np

from bench.endurance import streams
from bench.endurance.account import Account
from bench.endurance.clients import Address, Array, EventStream, GrpcStream, channels
from bench.endurance.measure import MIB, Reading

ELEMENTS = 12_800
"""Elements of one response: 100 KiB as bytes, and about as much as JSON."""

_PER_HOP = 3 * 16 * MIB
"""Bytes that a client which does not read may cost in each model of its chain. The window of unread responses may be
full three times: in the segment, in transit, and in the caller's iterator."""

_CONSTANT_READINGS = 8


async def run(
    address: Address,
    account: Account,
    *,
    model: str,
    clients: int,
    responses: int,
    hops: int,
    look: Callable[[], Reading],
) -> None:
    """Let each of *clients* send a request, read nothing until memory is constant, then read all responses."""
    connections = channels(address, clients)
    before = look()
    try:
        waiting = [
            await _begin(address, connections[number], model, np.array([responses, ELEMENTS, number], np.int64))
            for number in range(clients)
        ]
        held = await _wait_until_constant(look)
        grown = held.host.pss + held.guest.pss - before.host.pss - before.guest.pss
        if grown > clients * hops * _PER_HOP:
            account.wrong(f"{clients} clients that do not read cost {grown / MIB:.0f} MiB")
        # Meanwhile the same instances must serve other clients.
        await streams.run(address, account, model=model, clients=4, rounds=2, responses=50)
        await asyncio.gather(*(streams.take(account, answers, spec) for answers, spec in waiting))
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


async def _begin(
    address: Address, connection: object, model: str, spec: Array
) -> tuple[AsyncIterator[tuple[str, Array]], Array]:
    if spec[2] % 2:
        stream = GrpcStream(connection)  # type: ignore[arg-type]
        await stream.send(model, spec, f"s{spec[2]}")
        return _of_grpc(stream), spec
    return _of_http(await EventStream.open(address, model, spec), spec), spec


async def _of_grpc(stream: GrpcStream) -> AsyncIterator[tuple[str, Array]]:
    async for found, values in stream.responses():
        if values is not None:
            yield found, values
    await stream.close()


async def _of_http(events: EventStream, spec: Array) -> AsyncIterator[tuple[str, Array]]:
    async for event in events.events():
        if "error" in event:
            raise RuntimeError(event["error"])
        yield f"s{spec[2]}", np.array(event["OUT"], np.int64)
    await events.close()


async def _wait_until_constant(look: Callable[[], Reading]) -> Reading:
    """Wait until memory has been constant for a while; returns the last reading."""
    seen: list[int] = []
    while True:
        reading = look()
        seen.append((reading.host.pss + reading.guest.pss) // MIB)
        if len(seen) > _CONSTANT_READINGS and max(seen[-_CONSTANT_READINGS:]) - min(seen[-_CONSTANT_READINGS:]) <= 1:
            return reading
        await asyncio.sleep(0.25)
