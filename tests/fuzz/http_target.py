"""The HTTP frontend and OpenAI's API on connections without sockets: bytes in, bytes out, and checks of both."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter

import orjson
from fuzz.engine import CheckedEngine, ErrorLog
from fuzz.samples import request

from naiad.core.turns import LoopTurns
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.connection import HttpConnection
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits
from naiad.frontends.kserve_http.endpoints import Endpoints
from naiad.frontends.open_connections import OpenConnections
from naiad.frontends.regions import ClientRegions
from naiad_llm.api import OpenAiApi, OpenAiSettings

_MAX_TURNS = 200
_LIMITS = RequestLimits(header_bytes=8 << 10, body_bytes=1 << 20)


class HttpTarget:
    """Sends bytes, and checks the responses.

    Attributes:
        outcomes: How often responses had each status.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[int] = Counter()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._errors.texts.append(repr(context)))
        self._errors = ErrorLog()
        self._receive_buffer = memoryview(bytearray(READ_SIZE))
        logging.getLogger("naiad").addHandler(self._errors)
        extensions = Extensions(regions=ClientRegions(is_allowed=True))
        self._engine = CheckedEngine()
        openai = OpenAiApi(self._engine, extensions.tracer, OpenAiSettings())
        self._endpoints = Endpoints(
            self._engine, extensions, Access(), max_json=1 << 20, max_body=_LIMITS.body_bytes, fallback=openai.try_handle
        )  # fmt: skip
        self._heads = HeadCache()
        self._methods: list[str] = []

    def close(self) -> None:
        """Remove the log handler and close the loop."""
        logging.getLogger("naiad").removeHandler(self._errors)
        self._loop.close()

    def try_bytes(self, data: bytes, cuts: list[int]) -> None:
        """Send bytes, cut into pieces. Raises AssertionError for an invalid response."""
        self._loop.run_until_complete(asyncio.wait_for(self._exchange(data, cuts), 20))

    def try_body(self, line: str, body: bytes) -> None:
        """Send a complete request; it must get one response."""
        before = self.outcomes.total()
        self.try_bytes(request(line, body), [])
        assert self.outcomes.total() == before + 1, "no response"

    async def _exchange(self, data: bytes, cuts: list[int]) -> None:
        self._errors.texts.clear()
        self._methods = []
        connections: OpenConnections[HttpConnection] = OpenConnections()
        transport = _Transport()
        connection = HttpConnection(
            self._handle,
            connections,
            _LIMITS,
            self._heads,
            self._receive_buffer,
            LoopTurns(self._loop),
            reserve_input=self._endpoints.reserve_input,
        )
        connection.connection_made(transport)
        bounds = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        for start, end in itertools.pairwise(bounds):
            await self._feed(connection, transport, data[start:end])
        await self._settle(connection)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert not self._errors.texts, self._errors.texts[0]
        assert not connections, "a closed connection is still listed"
        self._check_written(bytes(transport.written))

    async def _feed(self, connection: HttpConnection, transport: _Transport, data: bytes) -> None:
        while data and not transport.is_closed:
            if transport.is_paused:
                await self._settle(connection)
                assert not transport.is_paused, "reading was never resumed"
            room = connection.get_buffer(-1)
            size = min(len(room), len(data))
            assert size, "the connection offers an empty buffer"
            room[:size] = data[:size]
            connection.buffer_updated(size)
            data = data[size:]
            await asyncio.sleep(0)

    async def _settle(self, connection: HttpConnection) -> None:
        for _ in range(_MAX_TURNS):
            self._engine.release()
            if connection.responses.is_idle and not connection.is_held:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"no response to {connection.responses.request!r}")

    def _handle(self, exchange: HttpExchange) -> None:
        self._methods.append(exchange.request.method)
        self._endpoints.handle(exchange)

    def _check_written(self, written: bytes) -> None:
        methods = iter(self._methods)
        while written:
            head, found, rest = written.partition(b"\r\n\r\n")
            assert found, written[:200]
            assert head.startswith(b"HTTP/1.1 "), head[:200]
            status = int(head.split(b" ", 2)[1])
            if status == 100:
                written = rest
                continue
            method = next(methods, "")  # malformed requests are rejected before they are handled
            body, written = _body(head, rest, has_body=method != "HEAD")
            self.outcomes[status] += 1
            if status >= 400 and body:
                _check_error(body)


def _body(head: bytes, rest: bytes, *, has_body: bool) -> tuple[bytes, bytes]:
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert len(headers) == head.count(b"\r\n"), head
    if not has_body:
        return b"", rest
    if b"content-length" in headers:
        size = int(headers[b"content-length"])
        assert len(rest) >= size, "the body is shorter than its head announces"
        return rest[:size], rest[size:]
    if b"transfer-encoding" not in headers:
        assert headers[b"connection"] == b"close"
        return rest, b""
    body = b""
    while True:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        chunk, end, rest = rest[:size], rest[size : size + 2], rest[size + 2 :]
        assert end == b"\r\n", "a chunk does not end where its size says"
        body += chunk
        if not size:
            return body, rest


def _check_error(body: bytes) -> None:
    """Errors are JSON with a text, and never internal errors."""
    document = orjson.loads(body.removeprefix(b"data: "))
    problem = document["error"]
    text = problem["message"] if isinstance(problem, dict) else problem
    assert text, "an error without a text"
    assert INTERNAL_ERROR not in text, "an internal error"


class _Transport(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False
        self.is_paused = False

    def write(self, data: object) -> None:
        if not self.is_closed:
            self.written += memoryview(data).cast("B")

    def writelines(self, parts: object) -> None:
        for part in parts:
            self.write(part)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: object = None, low: object = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
