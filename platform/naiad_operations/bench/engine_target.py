"""Requests to an engine in this process, without a network: what the model and the way to its guest cost."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from typing import Any

from naiad.core.errors import NaiadError
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from naiad_operations.bench.requests import BenchModel

__all__ = ["EngineTarget"]


class EngineTarget:
    """Submits one request again and again to an engine."""

    def __init__(self, engine: Any, model: BenchModel, request: InferRequest) -> None:
        self._engine = engine
        # One check holds for all requests, as for repeated bytes of clients: only their sequences differ.
        self._request = replace(request, layout_key=object())
        self._is_decoupled = model.is_decoupled
        self._sequences = itertools.count(1) if model.has_sequences else None

    async def open(self, workers: int) -> None:
        """Nothing is needed for workers."""

    async def send(self, worker: int) -> int:
        """Submit the request, and wait for its last response."""
        del worker
        if self._sequences is None:
            request = replace(self._request)
        else:
            flags = SEQUENCE_START | SEQUENCE_END
            request = replace(self._request, correlation_id=next(self._sequences), flags=flags)
        sink = _LastResponse(self._engine)
        sink.ticket = self._engine.submit(request, sink)
        await sink.ended
        if sink.error is not None:
            raise sink.error
        return sink.first_ns if self._is_decoupled else 0


class _LastResponse:
    """The engine's sink for the responses of one request.

    Attributes:
        ended: Done after the last response.
        ticket: The request's ticket.
        error: The first error, or None.
        first_ns: Nanoseconds until the first response.
    """

    def __init__(self, engine: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.ticket = 0
        self.error: NaiadError | None = None
        self.first_ns = 0
        self._engine = engine
        self._started = time.monotonic_ns()

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the protocol's signature
        """Note one response."""
        if response is not None:
            self.first_ns = self.first_ns or time.monotonic_ns() - self._started
            self.error = self.error or response.error
            # Later, not now: the engine may call `send` before `submit` has returned the ticket.
            self._loop.call_soon(self._confirm)
        if final and not self.ended.done():
            self.ended.set_result(None)

    def _confirm(self) -> None:
        self._engine.confirm_sent(self.ticket)
