"""Requests refused because of who sends them: lines in the log, and delays for clients that guess secrets.

A client that sends a wrong key, header or password gets its response later the more of them its address has sent. Right
ones are never delayed: many clients may have one address, behind a proxy, and one of them must not lock out the others.
So a delay slows down clients that wait for the response. It holds no one else: it is a timer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable

__all__ = ["RefusalLog", "Refusals", "client_address"]

logger = logging.getLogger("naiad.access")

_LOG_SECONDS = 10.0
"""Time between two lines about refusals of one kind: clients decide how many there are."""
_FREE = 5
"""Wrong secrets of an address that are answered at once: people mistype."""
_INTERVAL = 0.5
"""Seconds between the responses to further ones."""
_MAX_DELAY = 10.0
_MAX_ADDRESSES = 4096
_IPV6_NETWORK = 64
"""Bits of an address that one client of IPv6 usually has to itself."""


class RefusalLog:
    """Writes a line about the first refusal of a kind, and then at most one each `_LOG_SECONDS`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next: dict[str, float] = {}

    def add(self, kind: str, text: str) -> None:
        """Count a refusal, and log *text* if a line is due.

        Args:
            kind: What is counted together; one of a few constants.
            text: The line.
        """
        self._counts[kind] += 1
        now = time.monotonic()
        if now >= self._next.get(kind, 0.0):
            self._next[kind] = now + _LOG_SECONDS
            logger.warning("%s (%d refused so far)", text, self._counts[kind])


class Refusals:
    """The wrong secrets that the clients of one process have sent."""

    def __init__(self) -> None:
        self.log = RefusalLog()
        self._next: dict[str, float] = {}  # when the next response to an address is due; the latest change is last
        self._waiting: dict[object, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        self._is_closed = False

    def answer_later(self, what: str, address: str, answer: Callable[[], None]) -> Callable[[], None] | None:
        """Log a wrong secret, and call *answer*, which responds: now, or after the delay of its client's address.

        Args:
            what: What was wrong, for the log: `the password of /ui`. One of a few constants.
            address: The client's address; "" for clients without one, which count as one client.
            answer: Sends the response.

        Returns:
            None if *answer* was called. Else what forgets it: to be called once the client has disconnected.
        """
        self.log.add(what, f"refused {address or 'a local client'}: {what} is wrong")
        delay = 0.0 if self._is_closed else self._delay(address, time.monotonic())
        if not delay:
            answer()
            return None
        key = object()

        def on_due() -> None:
            self._waiting.pop(key)[1]()

        def forget() -> None:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting[0].cancel()

        self._waiting[key] = asyncio.get_running_loop().call_later(delay, on_due), answer
        return forget

    def close(self) -> None:
        """Send all responses that are due later now, and delay no more: the server stops."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, {}
        for timer, answer in waiting.values():
            timer.cancel()
            answer()

    def _delay(self, address: str, now: float) -> float:
        """Seconds until the response to another wrong secret of *address* is due."""
        client = _network_of(address)
        due = max(self._next.pop(client, 0.0) + _INTERVAL, now - (_FREE - 1) * _INTERVAL)
        self._next[client] = min(due, now + _MAX_DELAY)
        if len(self._next) > _MAX_ADDRESSES:
            del self._next[next(iter(self._next))]
        return min(max(due - now, 0.0), _MAX_DELAY)


def client_address(transport: asyncio.BaseTransport | None) -> str:
    """The address at the other end of a connection; "" for a socket of this machine, or none."""
    peer = None if transport is None else transport.get_extra_info("peername")
    # An address of IPv4 has the same text on a socket for both protocols.
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else ""


def _network_of(address: str) -> str:
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], _IPV6_NETWORK), strict=False))
    except ValueError:
        return address
