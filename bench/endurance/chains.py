"""Clients of chains of models; each request has unique values, so that a response of another request is detected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import numpy as np
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client

from bench.endurance.account import Account
from bench.endurance.clients import Address, Array, GrpcStream, channels, grpc_input, http_input, within
from bench.endurance.repository import STEPS

Ask = Callable[[Array, str], Awaitable[list[tuple[str, "Array | None"]]]]

_SIZES = (8, 8, 8, 8, 8, 8, 100, 1000, 6000, 40_000)
"""Numbers of elements: mostly few, sometimes more than the guest copies, sometimes more than the receive buffer."""

GRPC_CONNECTIONS = 8


def payload(client: int, number: int, rng: random.Random) -> Array:
    """The values of one request."""
    return np.arange(rng.choice(_SIZES), dtype=np.int64) * 1000 + (client << 44) + (number << 24)


async def run(address: Address, account: Account, *, clients: int, seconds: float, decoupled: bool) -> None:
    """Let each of *clients* send one request after the other for *seconds*; returns when all are answered."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    # Different options: grpcio shares one connection between all channels of a process with equal options.
    connections = [
        grpc_client.InferenceServerClient(address.grpc, channel_args=[("naiad.connection", number)])
        for number in range(GRPC_CONNECTIONS)
    ]
    streams = channels(address, GRPC_CONNECTIONS)
    http = http_client.InferenceServerClient(address.http, conn_limit=clients, conn_timeout=90)

    async def one(client: int) -> None:
        connection = connections[client % len(connections)]
        stream = GrpcStream(streams[client % len(streams)]) if decoupled else None
        ask = asking(connection, http, stream, use_http=client % 2 == 0)
        rng = random.Random(client)
        number = 0
        while loop.time() < until and account.violation_count < clients:
            number += 1
            await _ask_once(ask, account, payload(client, number, rng), f"{client}-{number}")
        if stream is not None:
            await close(stream, account)

    try:
        await asyncio.gather(*(one(client) for client in range(clients)))
    finally:
        await asyncio.gather(http.close(), *(each.close() for each in (*connections, *streams)))


async def close(stream: GrpcStream, account: Account) -> None:
    """Close a stream on which all requests are answered."""
    try:
        await stream.close()
    except Exception as error:  # noqa: BLE001 - every error is a violation
        account.wrong(f"cannot close a stream: {error!r}")


def asking(connection: object, http: object, stream: GrpcStream | None, *, use_http: bool) -> Ask:
    """The function that sends a client's requests to `head`: on *stream* if given, else over HTTP or gRPC."""

    async def ask(values: Array, request_id: str) -> list[tuple[str, Array | None]]:
        if stream is not None:
            return [answer async for answer in stream.ask("head", values, request_id)]
        if use_http:
            result = await within(http.infer("head", [http_input(values)], request_id=request_id))  # type: ignore[attr-defined]
            return [(result.get_response()["id"], result.as_numpy("OUT"))]
        result = await within(connection.infer("head", [grpc_input(values)], request_id=request_id))  # type: ignore[attr-defined]
        return [(result.get_response().id, result.as_numpy("OUT"))]

    return ask


async def _ask_once(ask: Ask, account: Account, values: Array, request_id: str) -> None:
    account.sent += 1
    try:
        answers = await ask(values, request_id)
    except Exception as error:  # noqa: BLE001 - every error is a violation
        account.wrong(f"request {request_id}: {error!r}")
        return
    problem = judge(answers, values, request_id)
    if problem:
        account.wrong(f"request {request_id}: {problem}")
        return
    account.answered += 1
    account.responses += 1


def judge(answers: list[tuple[str, Array | None]], values: Array, request_id: str) -> str:
    """The problem of the responses to one request of a chain; "" if they are correct."""
    ids = {found for found, _ in answers}
    if ids != {request_id}:
        return f"answered under the ids {sorted(ids)}"
    outputs = [output for _, output in answers if output is not None]
    if len(outputs) != 1:
        return f"answered {len(outputs)} times"
    if not np.array_equal(outputs[0], values + sum(STEPS)):
        return f"the response of another request: {values[:3]} became {outputs[0][:3]}"
    return ""
