"""Clients of decoupled models; responses carry a number and their request's tag, and must arrive once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from bench.endurance.account import Account
from bench.endurance.chains import GRPC_CONNECTIONS, close
from bench.endurance.clients import Address, Array, EventStream, GrpcStream, channels


async def run(
    address: Address, account: Account, *, model: str, clients: int, rounds: int, responses: int, elements: int = 8
) -> None:
    """Let each of *clients*, half of them over HTTP, read *rounds* streams."""
    connections = channels(address, GRPC_CONNECTIONS)

    async def one(client: int) -> None:
        stream = GrpcStream(connections[client // 2 % len(connections)]) if client % 2 else None
        for number in range(rounds):
            tag = client * 10_000 + number
            spec = np.array([responses, elements, tag], np.int64)
            await take(account, received(address, stream, model, spec), spec)
        if stream is not None:
            await close(stream, account)

    try:
        await asyncio.gather(*(one(client) for client in range(clients)))
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


async def received(
    address: Address, stream: GrpcStream | None, model: str, spec: Array
) -> AsyncIterator[tuple[str, Array]]:
    """The id and values of each response over either protocol; HTTP events have no id, so it is the expected one."""
    if stream is not None:
        async for found, values in stream.ask(model, spec, f"s{spec[2]}"):
            if values is not None:
                yield found, values
        return
    events = await EventStream.open(address, model, spec)
    try:
        async for event in events.events():
            if "error" in event:
                raise RuntimeError(event["error"])
            yield f"s{spec[2]}", np.atleast_1d(np.array(event["OUT"], np.int64))
    finally:
        await events.close()


async def take(account: Account, answers: AsyncIterator[tuple[str, Array]], spec: Array) -> None:
    """Read one stream to its end and check it."""
    count, _, tag = map(int, spec)
    account.sent += 1
    expected = 0
    try:
        async for found, values in answers:
            problem = judge(found, values, spec, expected)
            if problem:
                account.wrong(f"stream {tag}: {problem}")
                return
            expected += 1
            account.responses += 1
    except Exception as error:  # noqa: BLE001 - every error is a violation
        account.wrong(f"stream {tag}: after {expected} of {count} responses: {error!r}")
        return
    if expected != count:
        account.wrong(f"stream {tag}: {expected} of {count} responses arrived")
        return
    account.answered += 1


def judge(found: str, values: Array, spec: Array, expected: int) -> str:
    """The problem of one response of a stream; "" if it is correct."""
    _, elements, tag = map(int, spec)
    if found != f"s{tag}":
        return f"a response with the id {found}"
    if len(values) != elements or (values[1:] != tag).any():
        return f"a response of another stream: {values[:4]}"
    if values[0] != expected:
        return f"response {values[0]} arrived instead of {expected}"
    return ""
