"""Admission of new calls and a count of those that run: what an orderly stop of the server needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.core.errors import NotReadyError

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
"""Text: SRV src/grpc/grpc_server.cc."""


class AdmissionGate:
    """Counts running inferences. Once closed, it admits no new ones."""

    __slots__ = ("_close_callbacks", "_idle", "_running", "is_closed")

    def __init__(self) -> None:
        self.is_closed = False
        self._running = 0
        self._idle: asyncio.Event | None = None
        self._close_callbacks: set[Callable[[], None]] = set()

    def __repr__(self) -> str:
        return f"<AdmissionGate {'closed' if self.is_closed else 'open'} running={self._running}>"

    def check_open(self) -> None:
        """Raise `NotReadyError` if the gate is closed."""
        if self.is_closed:
            raise NotReadyError(SHUTTING_DOWN)

    def enter(self) -> None:
        self._running += 1

    def leave(self) -> None:
        self._running -= 1
        if self._idle is not None and not self._running:
            self._idle.set()

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the gate closes. Streams without requests end then."""
        self._close_callbacks.add(callback)

    def remove_close_callback(self, callback: Callable[[], None]) -> None:
        self._close_callbacks.discard(callback)

    async def close(self, grace: float) -> None:
        """Admit nothing more, and wait at most *grace* seconds for running inferences."""
        self.is_closed = True
        for callback in tuple(self._close_callbacks):
            callback()
        if not self._running:
            return
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except asyncio.TimeoutError:
            return
