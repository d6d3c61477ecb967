"""How long a connection lives: silence, pings, age, and its orderly end (RFC 9113, 6.7, 6.8; gRPC's A8, A9)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from naiad.frontends.http2.frames import ErrorCode

_KEEPALIVE = b"naiad\0ka"
_DRAIN = b"naiad\0go"
_DRAIN_SECONDS = 5.0
"""How long the answer to the ping of an orderly end is waited for."""
_IDLE_PING_INTERVAL = 7200.0
"""Seconds between pings of a client without calls, unless these are permitted: gRPC's own figure."""
_AGE_SPREAD = 0.1
"""The part of the greatest age by which it differs between connections, so that not all end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Times are seconds.

    Attributes:
        keepalive_time: Silence after which the client is pinged.
        keepalive_timeout: How long its answer is waited for.
        keepalive_without_calls: Whether it is pinged while no call is running.
        max_pings_without_data: Pings sent without data between them; 0 for any number.
        min_ping_interval: Pings of the client that come faster, with no data sent to it meanwhile, are strikes.
        max_ping_strikes: Strikes after which it is sent away; 0 for any number.
        max_age: Age at which the connection is closed.
        max_age_grace: How long calls may go on then.
    """

    keepalive_time: float = 7200.0
    keepalive_timeout: float = 20.0
    keepalive_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval: float = 300.0
    max_ping_strikes: int = 2
    max_age: float = math.inf
    max_age_grace: float = math.inf


class Living(Protocol):
    """A connection, as far as its life is concerned."""

    sends: int

    @property
    def open_streams(self) -> Collection[int]:
        """Streams that are being answered."""

    def ping(self, payload: bytes) -> None:
        """Send a ping."""

    def announce_end(self, *, is_final: bool) -> None:
        """Tell the client to open no more streams; finally, that none it opened since will be answered."""

    def give_up(self, code: ErrorCode, text: str) -> None:
        """End the connection, and say why."""

    def abort(self) -> None:
        """End the connection without a word."""


class Lifespan:
    """Watches over one connection.

    Attributes:
        heard: When something came from the client last.
        is_draining: Whether the connection ends once its streams do.
    """

    def __init__(self, owner: Living, lifetimes: Lifetimes, loop: asyncio.AbstractEventLoop) -> None:
        self.heard = loop.time()
        self.is_draining = False
        self._owner = owner
        self._lifetimes = lifetimes
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pings_without_data = 0
        self._sends_at_keepalive = -1
        self._strikes = 0
        self._last_ping = -math.inf
        self._sends_at_ping = -1

    def begin(self, handshake_seconds: float) -> None:
        """The client has connected."""
        self._later("handshake", handshake_seconds, self._owner.abort)
        age = self._lifetimes.max_age
        if age < math.inf:
            self._later("age", age * random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD), self._aged)

    def greeted(self) -> None:
        """The client has said what it speaks."""
        self._cancel("handshake")
        if self._lifetimes.keepalive_time < math.inf:
            self._later("keepalive", self._lifetimes.keepalive_time, self._look)

    def end(self) -> None:
        """The connection is gone."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def drain(self) -> None:
        """End the connection in order: no new streams, but those that the client has opened meanwhile."""
        if self.is_draining:
            return
        self.is_draining = True
        if "handshake" in self._timers:  # nothing was asked, and nothing said
            self._owner.abort()
            return
        self._owner.announce_end(is_final=False)
        self._owner.ping(_DRAIN)
        self._later("drain", _DRAIN_SECONDS, self._drained)

    def pinged(self) -> None:
        """Count a ping of the client.

        Raises nothing: it ends the connection of a client that pings too often.
        """
        if self._owner.sends != self._sends_at_ping:
            self._strikes = 0
            self._last_ping = -math.inf
            self._sends_at_ping = self._owner.sends
        now = self._loop.time()
        idle = not self._owner.open_streams and not self._lifetimes.keepalive_without_calls
        interval = _IDLE_PING_INTERVAL if idle else self._lifetimes.min_ping_interval
        if now < self._last_ping + interval:
            self._strikes += 1
            if 0 < self._lifetimes.max_ping_strikes < self._strikes:
                self._owner.give_up(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
                return
        else:
            self._last_ping = now

    def answered(self, payload: bytes) -> None:
        """The client has answered a ping."""
        if payload == _KEEPALIVE:
            self._cancel("answer")
        elif payload == _DRAIN and "drain" in self._timers:
            self._drained()

    def _drained(self) -> None:
        self._cancel("drain")
        self._owner.announce_end(is_final=True)

    def _aged(self) -> None:
        self.drain()
        if self._lifetimes.max_age_grace < math.inf:
            self._later("grace", self._lifetimes.max_age_grace, self._owner.abort)

    def _look(self) -> None:
        """Ping a client that has been silent for long enough."""
        lifetimes = self._lifetimes
        due = self.heard + lifetimes.keepalive_time - self._loop.time()
        if due > 0:
            self._later("keepalive", due, self._look)
            return
        self._later("keepalive", lifetimes.keepalive_time, self._look)
        if not self._owner.open_streams and not lifetimes.keepalive_without_calls:
            return
        if self._owner.sends != self._sends_at_keepalive:
            self._sends_at_keepalive = self._owner.sends
            self._pings_without_data = 0
        if 0 < lifetimes.max_pings_without_data <= self._pings_without_data:
            return
        self._pings_without_data += 1
        self._owner.ping(_KEEPALIVE)
        if "answer" not in self._timers and lifetimes.keepalive_timeout < math.inf:
            self._later("answer", lifetimes.keepalive_timeout, self._owner.abort)

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        self._cancel(name)
        self._timers[name] = self._loop.call_later(seconds, call)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
