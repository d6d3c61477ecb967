"""Lines in the log about requests that are refused because of who sends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

logger = logging.getLogger("naiad.access")

_LOG_SECONDS = 10.0  # time between two lines about refusals of one kind: clients decide how many there are


class RefusalLog:
    """Writes a line about the first refusal of a kind, and then at most one each `_LOG_SECONDS`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next: dict[str, float] = {}

    def add(self, kind: str, text: str) -> None:
        """Count a refusal of a *kind*, one of a few constants, and log *text* if a line is due."""
        self._counts[kind] += 1
        now = time.monotonic()
        if now >= self._next.get(kind, 0.0):
            self._next[kind] = now + _LOG_SECONDS
            logger.warning("%s (%d refused so far)", text, self._counts[kind])

    def add_wrong_secret(self, what: str, address: str) -> None:
        """Count a wrong secret; *what*, such as `the password of /ui`, is one of a few constants, or "" for none."""
        if what:
            self.add(what, f"refused {address or 'a local client'}: {what} is wrong")


def client_address(transport: asyncio.BaseTransport | None) -> str:
    """The address at the other end of a connection; "" for a socket of this machine, or none."""
    return _address(transport, "peername")


def server_address(transport: asyncio.BaseTransport | None) -> str:
    """The address at this end of a connection; "" for a socket of this machine, or none."""
    return _address(transport, "sockname")


def _address(transport: asyncio.BaseTransport | None, end: str) -> str:
    address = None if transport is None else transport.get_extra_info(end)
    # An address of IPv4 has the same text on a socket for both protocols.
    return str(address[0]).removeprefix("::ffff:") if isinstance(address, tuple) else ""
