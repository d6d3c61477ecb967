"""What can be set about the gRPC transport; defaults are the reference's (SRV src/command_line_parser.cc)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from naiad.frontends.http2.keepalive import Lifetimes

_FOR_EVER = 2**31 - 1
"""As many milliseconds are none that are waited for, as in gRPC."""


class CompressionLevel(enum.IntEnum):
    """How hard responses are compressed; gRPC picks an algorithm of that level which the client takes."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Keepalive, connection age and compression (flags `--grpc-keepalive-*`, `--grpc-http2-*` and so on).

    Attributes:
        keepalive_time_ms: Silence after which the server pings a client.
        keepalive_timeout_ms: How long it waits for the answer before it closes the connection.
        keepalive_permit_without_calls: Whether it pings while no call is running.
        http2_max_pings_without_data: Pings it sends without data between them.
        http2_min_recv_ping_interval_without_data_ms: Pings of clients that come faster than this are strikes.
        http2_max_ping_strikes: Strikes after which a client is sent away; 0 for any number.
        max_connection_age_ms: Age at which a connection is closed; 0 for never.
        max_connection_age_grace_ms: How long calls on such a connection may go on; 0 for as long as they like.
        response_compression: Compression of responses.
    """

    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data_ms: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    response_compression: CompressionLevel = CompressionLevel.NONE

    def lifetimes(self) -> Lifetimes:
        """The same as what a connection goes by."""
        return Lifetimes(
            keepalive_time=_seconds(max(self.keepalive_time_ms, 1)),  # as gRPC; 0 would keep the loop busy
            keepalive_timeout=_seconds(self.keepalive_timeout_ms),
            keepalive_without_calls=self.keepalive_permit_without_calls,
            max_pings_without_data=self.http2_max_pings_without_data,
            min_ping_interval=self.http2_min_recv_ping_interval_without_data_ms / 1000,
            max_ping_strikes=self.http2_max_ping_strikes,
            max_age=_seconds(self.max_connection_age_ms or _FOR_EVER),
            max_age_grace=_seconds(self.max_connection_age_grace_ms or _FOR_EVER),
        )


def _seconds(milliseconds: int) -> float:
    return math.inf if milliseconds >= _FOR_EVER else milliseconds / 1000
