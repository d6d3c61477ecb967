"""The open connections of listeners, and the limits on their number."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from naiad.frontends.refusals import client_address

logger = logging.getLogger("naiad.connections")

_MAX_REFUSED = 32
"""Refused connections that may be open at the same time, to be told why. Beyond it, they are closed at once. Fewer than
`_SPARE_FILES`, which they are taken from."""
_LOG_SECONDS = 60  # time between two lines of the log about refused connections
_SPARE_FILES = 128  # open files that the server keeps for everything but connections, at least: guests, models, logs

C = TypeVar("C")


def default_limit() -> int:
    """How many connections to accept: three quarters of the limit on open files; 0 without that limit."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 0
    return max(files - max(_SPARE_FILES, files // 4), 1)


class ConnectionCount:
    """Counts the connections of several listeners against common limits."""

    def __init__(
        self,
        total: int = 0,  # how many may be open; 0 for any number
        per_address: int = 0,  # how many of one client address may be open; 0 for any number
    ) -> None:
        self.refused: Counter[str] = Counter()  # refused connections by reason: `total` or `address`
        self.timed_out: Counter[str] = Counter()  # closed connections, by the name of the limit
        self._total = total
        self._per_address = per_address
        self.open = self.refusing = 0
        self._elsewhere = 0
        self._find_address: Callable[[asyncio.Transport], str] = client_address
        self._on_left: Callable[[str], None] | None = None
        self._addresses: Counter[str] = Counter()
        self._next_log = 0.0

    def __repr__(self) -> str:
        return f"<ConnectionCount open={self.open} refused={self.refused.total()}>"

    def address_of(self, transport: asyncio.Transport) -> str:
        """The client's address if it matters for the limits; else empty."""
        return self._find_address(transport) if self._per_address or self._on_left else ""

    def address(self, text: str) -> str:
        """An address if it matters for the limits; else empty."""
        return text if self._per_address else ""

    def enter(self, address: str) -> str:
        """Count a connection; why it is refused, and was not counted, or empty."""
        if self._total and self.open + self._elsewhere >= self._total:
            return self._refuse(
                "total",
                f"cannot accept the connection: {self._total} are open, the limit of --max-connections; close idle "
                "connections or try again later",
            )
        if self._per_address and address and self._addresses[address] >= self._per_address:
            return self._refuse(
                "address",
                f"cannot accept the connection: {self._per_address} are open from {address}, the limit of "
                "--max-connections-per-address; use one of them or close it",
            )
        self.open += 1
        self._enter(address)
        return ""

    def may_enter(self, address: str) -> bool:
        is_full = self._total and self.open + self._elsewhere >= self._total
        return not is_full and not (self._per_address and address and self._addresses[address] >= self._per_address)

    def enter_elsewhere(self, address: str) -> None:
        """Count a connection that another process serves, under the limits of this one."""
        self._elsewhere += 1
        self._enter(address)

    def leave_elsewhere(self, address: str) -> None:
        self._elsewhere -= 1
        self._leave(address)

    def defer(self, find_address: Callable[[asyncio.Transport], str], on_left: Callable[[str], None]) -> None:
        """Refuse no connection, since another process does; *on_left* is called with the address of each at its end."""
        self._total = self._per_address = 0
        self._find_address, self._on_left = find_address, on_left

    def _enter(self, address: str) -> None:
        if address:
            self._addresses[address] += 1

    def _leave(self, address: str) -> None:
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _refuse(self, limit: str, reason: str) -> str:
        self.refused[limit] += 1
        now = time.monotonic()
        if now >= self._next_log:  # clients decide how often connections are refused
            self._next_log = now + _LOG_SECONDS
            logger.warning("%s (%d refused so far)", reason, self.refused.total())
        return reason

    def leave(self, address: str) -> None:
        self.open -= 1
        self._leave(address)
        if self._on_left is not None:
            self._on_left(address)


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
