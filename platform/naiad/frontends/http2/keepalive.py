"""How long a connection lives: keepalive pings, the client's pings, maximum age, graceful shutdown.

The rules are gRPC's (its proposals A8 and A9), with its defaults; frames and their order are RFC 9113's (6.7, 6.8).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from naiad.frontends.http2.frames import ErrorCode

_KEEPALIVE_PAYLOAD = b"naiad\0ka"
_SHUTDOWN_PAYLOAD = b"naiad\0go"  # payloads of our two kinds of pings: their acknowledgements repeat them
_SHUTDOWN_PING_SECONDS = 5.0  # how long a graceful shutdown waits for the acknowledgement of its ping
_PREFACE_SECONDS = 0.2  # how long a graceful shutdown waits for the preface of a client that has just connected
_IDLE_PING_INTERVAL = 7200.0  # seconds between pings of a client without calls, by default: gRPC's own figure
_AGE_JITTER = 0.1  # how much maximum ages differ, so that connections do not all end, and reconnect, at once


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveSettings:
    """When connections are pinged and closed. Times are in seconds."""

    keepalive_time: float = 7200.0  # silence after which the client is pinged
    keepalive_timeout: float = 20.0  # how long the acknowledgement may take before the connection is aborted
    keepalive_without_calls: bool = False  # a client without calls is pinged, and may ping like others
    max_pings_without_data: int = 2  # pings sent without data in between; 0 for no limit
    min_ping_interval: float = 300.0  # faster pings of a client, with no data sent in between, are strikes
    max_ping_strikes: int = 2  # strikes after which the connection ends with ENHANCE_YOUR_CALM; 0 for no limit
    max_age: float = math.inf  # age at which a graceful shutdown begins
    max_age_grace: float = math.inf  # how long calls may then continue before the connection is aborted


class KeptConnection(Protocol):
    """What keepalive and shutdown need of a connection."""

    @property
    def has_preface(self) -> bool:
        """Whether the client has sent HTTP/2's preface."""

    @property
    def has_unread_bytes(self) -> bool:
        """Whether the client has sent bytes that were not read yet."""

    @property
    def sent_count(self) -> int:
        """How many field sections and pieces of data were sent."""

    @property
    def open_streams(self) -> Collection[int]:
        """Identifiers of open streams."""

    def ping(self, payload: bytes) -> None:
        """Send a ping."""

    def announce_shutdown(self, *, is_final: bool) -> None:
        """Send a GOAWAY with NO_ERROR; a final one names the last stream that is processed."""

    def fail(self, code: ErrorCode, text: str) -> None:
        """End the connection with GOAWAY."""

    def abort(self) -> None:
        """Close the connection without GOAWAY."""


@dataclass(slots=True, eq=False)
class Keepalive:
    """Pings a silent client, aborts the connection if it stays silent, and polices the client's own pings."""

    _connection: KeptConnection
    _settings: KeepaliveSettings
    _loop: asyncio.AbstractEventLoop
    last_read: float  # when bytes last arrived, by the loop's clock
    _silence_timer: asyncio.TimerHandle | None = None
    _ack_timer: asyncio.TimerHandle | None = None
    # Our pings.
    _pings_without_data: int = 0
    _sent_at_last_keepalive: int = -1
    # The client's pings.
    _strikes: int = 0
    _last_ping: float = -math.inf
    _sent_at_last_ping: int = -1

    def start(self) -> None:
        if self._settings.keepalive_time < math.inf:
            self._silence_timer = self._loop.call_later(self._settings.keepalive_time, self._check_silence)

    def stop(self) -> None:
        for timer in (self._silence_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._silence_timer = self._ack_timer = None

    def on_ping(self) -> None:
        """Count a ping of the client. Ends the connection of a client that pings too often ("too_many_pings").

        Data that we sent since the last ping forgives all strikes: pings around real traffic are not abuse.
        """
        connection, settings = self._connection, self._settings
        if connection.sent_count != self._sent_at_last_ping:
            self._strikes = 0
            self._last_ping = -math.inf
            self._sent_at_last_ping = connection.sent_count
        now = self._loop.time()
        is_idle = not connection.open_streams and not settings.keepalive_without_calls
        interval = _IDLE_PING_INTERVAL if is_idle else settings.min_ping_interval
        if now >= self._last_ping + interval:
            self._last_ping = now
            return
        self._strikes += 1
        if 0 < settings.max_ping_strikes < self._strikes:
            connection.fail(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def on_ping_ack(self, payload: bytes) -> None:
        if payload == _KEEPALIVE_PAYLOAD and self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def _check_silence(self) -> None:
        settings, connection = self._settings, self._connection
        remaining = self.last_read + settings.keepalive_time - self._loop.time()
        if remaining > 0:
            # Reads only note their time: moving a timer with each read would cost every request.
            self._silence_timer = self._loop.call_later(remaining, self._check_silence)
            return
        self._silence_timer = self._loop.call_later(settings.keepalive_time, self._check_silence)
        if not connection.open_streams and not settings.keepalive_without_calls:
            return
        if connection.sent_count != self._sent_at_last_keepalive:
            self._sent_at_last_keepalive = connection.sent_count
            self._pings_without_data = 0
        if 0 < settings.max_pings_without_data <= self._pings_without_data:
            return
        self._pings_without_data += 1
        connection.ping(_KEEPALIVE_PAYLOAD)
        if self._ack_timer is None and settings.keepalive_timeout < math.inf:
            self._ack_timer = self._loop.call_later(settings.keepalive_timeout, connection.abort)


@dataclass(slots=True, eq=False)
class GracefulShutdown:
    """Ends a connection so that no request is lost (section 6.8).

    1. GOAWAY with the greatest possible stream identifier: the client should open no more streams here.
    2. A ping. Its acknowledgement proves that the client has seen the GOAWAY; streams that it opened before are here.
    3. GOAWAY with the last stream that arrived. Later ones are refused, and the client may send them elsewhere.
    4. The connection closes when its last stream ends.
    """

    _connection: KeptConnection
    _settings: KeepaliveSettings
    _loop: asyncio.AbstractEventLoop
    has_begun: bool = False  # whether the connection closes with its last stream
    is_announced: bool = False  # the last stream was announced (step 3): no request can be lost
    _age_timer: asyncio.TimerHandle | None = None
    _ack_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._settings.max_age < math.inf:
            age = self._settings.max_age * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
            self._age_timer = self._loop.call_later(age, self._on_max_age)

    def stop(self) -> None:
        for timer in (self._age_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._age_timer = self._ack_timer = None

    def begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        if self._connection.has_preface:
            self._announce()
        else:  # the client may have sent it, and a request, which were not read yet; no frame may precede our SETTINGS
            self._ack_timer = self._loop.call_later(_PREFACE_SECONDS, self._on_no_preface)

    def _on_no_preface(self) -> None:
        """Abort the connection, unless the preface is only waiting to be read."""
        if self._connection.has_unread_bytes:
            self._ack_timer = self._loop.call_later(_PREFACE_SECONDS, self._on_no_preface)
        else:
            self._connection.abort()

    def on_preface(self) -> None:
        if self.has_begun:
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            self._announce()

    def _announce(self) -> None:
        self._connection.announce_shutdown(is_final=False)
        self._connection.ping(_SHUTDOWN_PAYLOAD)
        self._ack_timer = self._loop.call_later(_SHUTDOWN_PING_SECONDS, self._announce_last_stream)

    def on_ping_ack(self, payload: bytes) -> None:
        if payload == _SHUTDOWN_PAYLOAD and self._ack_timer is not None:
            self._announce_last_stream()

    def _announce_last_stream(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self.is_announced = True
        self._connection.announce_shutdown(is_final=True)

    def _on_max_age(self) -> None:
        self._age_timer = None
        self.begin()
        if self._settings.max_age_grace < math.inf:
            self._age_timer = self._loop.call_later(self._settings.max_age_grace, self._connection.abort)
