"""The addresses of a server, and the clients that the loads share."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

LOST_AFTER = 90.0
"""Seconds without a response after which a request counts as lost."""

Array = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Address:
    """The addresses and the process id of a server under load."""

    host: str
    http_port: int
    grpc_port: int
    pid: int

    @property
    def http(self) -> str:
        """`host:port` for the HTTP client."""
        return f"{self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        """`host:port` for the gRPC client."""
        return f"{self.host}:{self.grpc_port}"


def grpc_input(values: Array) -> Any:
    """The input IN for gRPC."""
    tensor = grpc_client.InferInput("IN", values.shape, "INT64")
    tensor.set_data_from_numpy(values)
    return tensor


def http_input(values: Array) -> Any:
    """The input IN for HTTP."""
    tensor = http_client.InferInput("IN", values.shape, "INT64")
    tensor.set_data_from_numpy(values)
    return tensor


def grpc_request(model: str, values: Array, request_id: str) -> Any:
    """A request as a gRPC message."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="IN", datatype="INT64", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request


async def within(awaitable: Any) -> Any:
    """Wait for a result, for at most `LOST_AFTER` seconds."""
    return await asyncio.wait_for(awaitable, LOST_AFTER)


class GrpcStream:
    """One gRPC stream for consecutive requests; it reads a response only when the caller requests it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()

    async def send(self, model: str, values: Array, request_id: str) -> None:
        """Send one request."""
        request = grpc_request(model, values, request_id)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        await self._call.write(request)

    async def responses(self) -> AsyncIterator[tuple[str, Array | None]]:
        """The id and OUT of each response to the last request, up to the final one, which may have no OUT.

        Raises:
            RuntimeError: If a response is an error.
            EOFError: If the stream ends before the final response.
        """
        while True:
            message = await within(self._call.read())
            if message is grpc.aio.EOF:
                raise EOFError(f"the stream ended: {await self._call.code()} {await self._call.details()}")
            if message.error_message:
                raise RuntimeError(message.error_message)
            response = message.infer_response
            raw = response.raw_output_contents
            yield response.id, np.frombuffer(raw[0], np.int64) if raw else None
            if response.parameters["triton_final_response"].bool_param:
                return

    async def ask(self, model: str, values: Array, request_id: str) -> AsyncIterator[tuple[str, Array | None]]:
        """Send a request and read its responses."""
        await within(self.send(model, values, request_id))
        async for response in self.responses():
            yield response

    def cancel(self) -> None:
        """Cancel the stream and its requests."""
        self._call.cancel()

    async def close(self) -> None:
        """Close the sending side and wait for the end of the stream.

        Raises:
            RuntimeError: If another response arrives.
        """
        await self._call.done_writing()
        if await within(self._call.read()) is not grpc.aio.EOF:
            raise RuntimeError("a response came after the final one")


def channels(address: Address, count: int) -> list[grpc.aio.Channel]:
    """Separate connections: grpcio shares one between channels of a process unless their options differ."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return [
        grpc.aio.insecure_channel(address.grpc, [*options, ("naiad.connection", number)]) for number in range(count)
    ]


class EventStream:
    """A `generate_stream` request on its own connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, model: str, values: Array, *, receive_buffer: int = 0) -> EventStream:
        """Connect and send the request; *receive_buffer* limits the bytes that the client buffers unread."""
        limit = receive_buffer or 1 << 16
        reader, writer = await asyncio.open_connection(address.host, address.http_port, limit=limit)
        body = json.dumps({"IN": values.tolist()}).encode()
        writer.write(
            f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return cls(reader, writer)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The events until the stream's end.

        Raises:
            EOFError: If the connection is closed within an event.
        """
        rest = b""
        await within(self._reader.readuntil(b"\r\n\r\n"))
        while True:
            size = int((await within(self._reader.readuntil(b"\r\n"))).strip(), 16)
            chunk = await within(self._reader.readexactly(size + 2))
            if not size:
                break
            *events, rest = (rest + chunk[:-2]).split(b"\n\n")
            for event in events:
                yield json.loads(event.removeprefix(b"data: "))
        if rest:
            raise EOFError(f"the stream ended within an event: {rest[:80]!r}")

    def abort(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, also if events are unread."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
