"""Whether new inferences are let in, and how many are inside: what a clean stop needs to know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.errors import NotReadyError

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
"""SRV src/grpc/grpc_server.cc."""


class Gate:
    """Counts inferences; once closed it lets no new one in."""

    __slots__ = ("_idle", "_inside", "_on_close", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._inside = 0
        self._idle: asyncio.Event | None = None
        self._on_close: set[Callable[[], None]] = set()

    def __repr__(self) -> str:
        return f"<Gate {'closed' if self.closed else 'open'} inside={self._inside}>"

    def check(self) -> None:
        """Raise `NotReadyError` once the gate is closed."""
        if self.closed:
            raise NotReadyError(SHUTTING_DOWN)

    def enter(self) -> None:
        """Count one inference in."""
        self._inside += 1

    def leave(self) -> None:
        """Count one inference out."""
        self._inside -= 1
        if self._idle is not None and not self._inside:
            self._idle.set()

    def watch(self, on_close: Callable[[], None]) -> None:
        """Have *on_close* called when the gate closes."""
        self._on_close.add(on_close)

    def unwatch(self, on_close: Callable[[], None]) -> None:
        """Take back a `watch`."""
        self._on_close.discard(on_close)

    async def close(self, grace: float) -> None:
        """Let nothing in any more and wait at most *grace* seconds for what is inside."""
        self.closed = True
        for on_close in tuple(self._on_close):
            on_close()
        if not self._inside:
            return
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except asyncio.TimeoutError:
            return
