"""Clients that cancel at random times, over both protocols, and others whose responses must stay correct."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from bench.endurance import chains, streams
from bench.endurance.account import Account
from bench.endurance.clients import Address, EventStream, GrpcStream, channels, grpc_request, within

_LONGEST = 0.05
_RESPONSES = 200


class _Client:
    """One client: sends requests, and cancels most of them."""

    def __init__(self, address: Address, account: Account, channel: grpc.aio.Channel, number: int, stream: str) -> None:
        self._address = address
        self._account = account
        self._channel = channel
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._number = number
        self._stream = stream
        self._rng = random.Random(number)
        self._asked = 0

    async def once(self) -> None:
        """Send one request of a random kind."""
        self._asked += 1
        kinds = (self._grpc_call, self._http_call, self._grpc_stream, self._http_stream, self._whole_chain, self._whole)
        await self._rng.choice(kinds)()

    def _values(self) -> np.ndarray:
        return chains.payload(self._number, self._asked, self._rng)

    def _spec(self, elements: int = 8) -> np.ndarray:
        return np.array([_RESPONSES, elements, self._number * 100_000 + self._asked], np.int64)

    async def _a_moment(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, _LONGEST))

    def _given_up(self) -> None:
        self._account.sent += 1
        self._account.given_up += 1

    async def _grpc_call(self) -> None:
        self._given_up()
        call = self._stub.ModelInfer(grpc_request("head", self._values(), "given-up"))
        await self._a_moment()
        call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await within(call.wait_for_connection())

    async def _http_call(self) -> None:
        self._given_up()
        values = self._values()
        document = {"inputs": [{"name": "IN", "datatype": "INT64", "shape": values.shape, "data": values.tolist()}]}
        body = json.dumps(document).encode()
        _, writer = await asyncio.open_connection(self._address.host, self._address.http_port)
        head = f"POST /v2/models/head/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        cut = self._rng.choice((len(body), len(body), len(body) // 2))  # some send only half of the request
        writer.write(head + body[:cut])
        await self._a_moment()
        writer.transport.abort()

    async def _grpc_stream(self) -> None:
        self._given_up()
        stream = GrpcStream(self._channel)
        await within(stream.send(self._stream, self._spec(self._rng.choice((8, 8, 8000))), "given-up"))
        wanted = self._rng.randrange(_RESPONSES // 2)
        async for _ in stream.responses():
            wanted -= 1
            if wanted <= 0:
                break
        stream.cancel()

    async def _http_stream(self) -> None:
        self._given_up()
        events = await EventStream.open(self._address, self._stream, self._spec(self._rng.choice((8, 8, 2000))))
        wanted = self._rng.randrange(_RESPONSES // 2)
        async for _ in events.events():
            wanted -= 1
            if wanted <= 0:
                break
        events.abort()

    async def _whole_chain(self) -> None:
        self._account.sent += 1
        request_id = f"{self._number}-{self._asked}"
        values = self._values()
        response = await within(self._stub.ModelInfer(grpc_request("head", values, request_id)))
        output = np.frombuffer(response.raw_output_contents[0], np.int64)
        problem = chains.judge([(response.id, output)], values, request_id)
        if problem:
            self._account.wrong(problem)
        else:
            self._account.answered += 1
            self._account.responses += 1

    async def _whole(self) -> None:
        stream = GrpcStream(self._channel) if self._rng.random() < 0.5 else None
        spec = self._spec()
        await streams.take(self._account, streams.received(self._address, stream, self._stream, spec), spec)
        if stream is not None:
            await stream.close()


async def run(address: Address, account: Account, *, stream: str, clients: int, seconds: float) -> None:
    """Let *clients* send requests to the chain and the model *stream* for *seconds*; then check *stream* once more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    connections = channels(address, chains.GRPC_CONNECTIONS)

    async def one(number: int) -> None:
        client = _Client(address, account, connections[number % len(connections)], number, stream)
        while loop.time() < until and account.violation_count < clients:
            try:
                await client.once()
            except Exception as error:  # noqa: BLE001 - every error is a violation
                account.wrong(f"client {number}: {error!r}")

    try:
        await asyncio.gather(*(one(number) for number in range(clients)))
        await streams.run(address, account, model=stream, clients=4, rounds=1, responses=_RESPONSES)
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))
