"""Requests over HTTP: one connection for each worker, and the same bytes for each request.

A decoupled model is asked by `generate_stream`, with the inputs as JSON: its responses are events of a stream.

The parser is httptools', which the server uses, too. A client library spends more time on a request than the server, so
that the figures would be those of the client.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httptools
import orjson

from naiad.cli.http_reading import ServerAddress
from naiad.core.errors import Code, NaiadError, OptionError
from naiad.protocol.inference import InferRequest
from naiad_operations.bench.requests import BenchModel, flat_json

_OK = 200


class HttpTarget:
    """Sends one request again and again to a server."""

    def __init__(self, server: ServerAddress, model: BenchModel, request: InferRequest, version: str) -> None:
        """Encode the request; *version* is named in the path unless it is empty."""
        self._server = server
        self._port = server.port or (443 if server.is_secure else 80)
        self._ssl = ssl.create_default_context() if server.is_secure else None
        self._messages = _messages(server, model, request, version)
        self._is_stream = model.is_decoupled
        self._connections: list[_Connection | None] = []

    async def open(self, workers: int) -> None:
        self._connections += [None] * (workers - len(self._connections))

    async def send(self, worker: int) -> int:
        """Send the request on the worker's connection; for a decoupled model, return the time to its first response."""
        started = time.monotonic_ns()
        try:
            connection = self._connections[worker]
            if connection is None or connection.is_closed:
                connection = self._connections[worker] = await self._connect()
            status, body = await connection.exchange(next(self._messages))
        except OSError as error:
            raise NaiadError(f"{self._server.url}: {error.strerror or error}", code=Code.UNAVAILABLE) from None
        if status != _OK:
            raise NaiadError(_error_text(status, body))
        if not self._is_stream:
            return 0
        if problem := _event_error(body):
            raise NaiadError(problem)
        return connection.first_ns - started if connection.first_ns else 0

    def close(self) -> None:
        for connection in self._connections:
            if connection is not None:
                connection.close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._server.host, self._port, ssl=self._ssl)
        return connection


def _messages(server: ServerAddress, model: BenchModel, request: InferRequest, version: str) -> Iterator[bytes]:
    """The bytes of each request: the same, but for the ids of sequences."""
    versioned = f"/versions/{quote(version, safe='')}" if version else ""
    path = f"/v2/models/{quote(model.metadata.name, safe='')}{versioned}"
    id_type = model.sequence_id_type
    if model.is_decoupled:
        if id_type is not None:
            raise OptionError(
                f"cannot send sequences to '{model.metadata.name}' over HTTP: it is decoupled, and streams of HTTP "
                "have no sequences; add --grpc"
            )
        return itertools.repeat(_stream_message(server, path, request))
    if id_type is None:
        return itertools.repeat(_message(server, path, request, {}))
    # Each request is a separate sequence.
    flags = {"sequence_start": True, "sequence_end": True}
    return (_message(server, path, request, {"sequence_id": id_type(number), **flags}) for number in itertools.count(1))


def _stream_message(server: ServerAddress, path: str, request: InferRequest) -> bytes:
    body = orjson.dumps({**flat_json(request), "parameters": dict(request.parameters)})
    return _post(server, f"{path}/generate_stream", body, {"Content-Type": "application/json"})


def _message(server: ServerAddress, path: str, request: InferRequest, parameters: dict[str, Any]) -> bytes:
    tensors = [bytes(tensor.data) for tensor in request.inputs]
    document = {
        "parameters": {**request.parameters, **parameters, "binary_data_output": True},
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype.name,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(data)},
            }
            for tensor, data in zip(request.inputs, tensors, strict=True)
        ],
    }
    head = orjson.dumps(document)
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return _post(server, f"{path}/infer", b"".join((head, *tensors)), headers)


def _post(server: ServerAddress, path: str, body: bytes, more: dict[str, str]) -> bytes:
    host = f"[{server.host}]" if ":" in server.host else server.host
    headers = {
        "Host": host if server.port is None else f"{host}:{server.port}",
        "Content-Length": str(len(body)),
        **more,
        **server.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class _Connection(asyncio.Protocol):
    """A connection with at most one request in flight; *first_ns* is when the last response's body began, or 0."""

    def __init__(self) -> None:
        self.is_closed = False
        self.first_ns = 0
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser: Any = None
        self._body: list[bytes] = []

    def exchange(self, message: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self.first_ns = 0
        self._transport.write(message)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio's callbacks --

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"invalid response: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._fail(f"the server closed the connection{f': {error}' if error else ''}")

    # -- the parser's callbacks --

    def on_body(self, body: bytes) -> None:
        self.first_ns = self.first_ns or time.monotonic_ns()
        self._body.append(body)

    def on_message_complete(self) -> None:
        parser, self._parser = self._parser, None
        if not parser.should_keep_alive():
            self.is_closed = True
            self.close()
        self._finish(lambda answer: answer.set_result((parser.get_status_code(), b"".join(self._body))))

    def _fail(self, message: str) -> None:
        self._finish(lambda answer: answer.set_exception(ConnectionError(message)))

    def _finish(self, finish: Callable[[asyncio.Future[tuple[int, bytes]]], None]) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            finish(answer)


def _event_error(body: bytes) -> str:
    """The message of the first event that is an error; empty if none is."""
    if b'"error"' not in body:
        return ""
    for line in body.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            event = orjson.loads(line.partition(b":")[2])
            if event.keys() == {"error"}:
                return str(event["error"])
    return ""


def _error_text(status: int, body: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(orjson.loads(body)["error"])
    return f"HTTP status {status}"
