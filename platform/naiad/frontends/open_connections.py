"""The open connections of listeners, and the limits on their number."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from naiad.frontends.refusals import client_address

logger = logging.getLogger("naiad.connections")

_MAX_REFUSED = 32
"""Refused connections that may be open at the same time, to be told why. Beyond it, they are closed at once. Fewer than
`_SPARE_FILES`, which they are taken from."""
_LOG_SECONDS = 60
"""Time between two lines of the log about refused connections."""
_SPARE_FILES = 128
"""Open files that the server keeps for everything but connections, at least: guests, models, logs."""

C = TypeVar("C")


def default_limit() -> int:
    """How many connections to accept: three quarters of the limit on open files; 0 without that limit."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 0
    return max(files - max(_SPARE_FILES, files // 4), 1)


class OtherCounts(Protocol):
    """Tells other processes of the server how many connections this one has, and what they have."""

    def note_open(self, count: int) -> int:
        """This process has *count* connections; return how many the others have."""

    def note_address(self, address: str, count: int) -> int:
        """This process has *count* connections from an address; return how many the others have."""


class ConnectionCount:
    """Counts the connections of several listeners against common limits.

    Attributes:
        refusing: Number of those.
        refused: Number of connections that were refused, by reason: `total` or `address`.
        timed_out: Number of connections that were closed because of a time limit, by its name.
    """

    def __init__(
        self,
        total: int = 0,
        per_address: int = 0,
        others: OtherCounts | None = None,
        *,
        is_total_shared: bool = True,
    ) -> None:
        """No connections yet.

        Args:
            total: How many may be open; 0 for any number.
            per_address: How many of one client address may be open; 0 for any number.
            others: Other processes that share the limits; None for none.
            is_total_shared: Whether they share *total* too.
        """
        self.refused: Counter[str] = Counter()
        self.timed_out: Counter[str] = Counter()
        self._total = total
        self._per_address = per_address
        self._others = others
        self._is_total_shared = is_total_shared
        self.open = self.refusing = 0
        self._addresses: Counter[str] = Counter()
        self._next_log = 0.0

    def __repr__(self) -> str:
        return f"<ConnectionCount open={self.open} refused={self.refused.total()}>"

    def address_of(self, transport: asyncio.Transport) -> str:
        """The client's address if it matters for the limits; else empty."""
        if not self._per_address:
            return ""
        return client_address(transport)

    def enter(self, address: str) -> str:
        """Count a connection; why it is refused, and was not counted, or empty."""
        # Noted before it is known whether it is accepted: another process may accept one at the same time.
        self.open += 1
        elsewhere = self._note_open()
        if self._total and self.open + (elsewhere if self._is_total_shared else 0) > self._total:
            self.open -= 1
            self._note_open()
            return self._refuse(
                "total",
                f"cannot accept the connection: {self._total} are open, the limit of --max-connections; close idle "
                "connections or try again later",
            )
        if address:
            self._addresses[address] += 1
            if self._addresses[address] + self._note_address(address) > self._per_address:
                self.leave(address)
                return self._refuse(
                    "address",
                    f"cannot accept the connection: {self._per_address} are open from {address}, the limit of "
                    "--max-connections-per-address; use one of them or close it",
                )
        return ""

    def _note_open(self) -> int:
        return 0 if self._others is None else self._others.note_open(self.open)

    def _note_address(self, address: str) -> int:
        return 0 if self._others is None else self._others.note_address(address, self._addresses[address])

    def _refuse(self, limit: str, reason: str) -> str:
        self.refused[limit] += 1
        now = time.monotonic()
        if now >= self._next_log:  # clients decide how often connections are refused
            self._next_log = now + _LOG_SECONDS
            logger.warning("%s (%d refused so far)", reason, self.refused.total())
        return reason

    def leave(self, address: str) -> None:
        """Count the end of a connection that was accepted."""
        self.open -= 1
        self._note_open()
        if address:
            self._addresses[address] -= 1
            self._note_address(address)
            if not self._addresses[address]:
                del self._addresses[address]


class OpenConnections(Generic[C]):
    """The open connections of one listener, those included that are being refused."""

    def __init__(self, count: ConnectionCount | None = None) -> None:
        self.count = count or ConnectionCount()
        self.on_added: Callable[[], None] = lambda: None
        self._addresses: dict[C, str | None] = {}  # None: it is being refused

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[C]:
        """Iterate over a copy: connections may end meanwhile."""
        return iter(tuple(self._addresses))

    def __contains__(self, connection: object) -> bool:
        return connection in self._addresses

    def add(self, connection: C, transport: asyncio.Transport) -> str:
        """Add a connection. Returns why it must be refused, as a sentence for its client; empty if it is accepted."""
        address = self.count.address_of(transport)
        refusal = self.count.enter(address)
        self._addresses[connection] = None if refusal else address
        self.on_added()
        if not refusal:
            return ""
        self.count.refusing += 1
        if self.count.refusing > _MAX_REFUSED:
            transport.abort()
        return refusal

    def discard(self, connection: C) -> None:
        if connection in self._addresses:
            address = self._addresses.pop(connection)
            if address is None:
                self.count.refusing -= 1
            else:
                self.count.leave(address)
