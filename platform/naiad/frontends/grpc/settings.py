"""Settings of the gRPC transport; defaults of the reference's flags are its own (SRV src/command_line_parser.cc)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from naiad.frontends.http2.keepalive import KeepaliveSettings

_INFINITE_MS = 2**31 - 1  # gRPC takes INT_MAX milliseconds, and more, as infinite


class CompressionLevel(enum.IntEnum):
    """How hard responses are compressed.

    gRPC chooses an algorithm for the level, among those that the client accepts.
    """

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Keepalive, connection age and compression: the flags `--grpc-keepalive-*`, `--grpc-http2-*` and so on."""

    keepalive_time_ms: int = 7_200_000  # silence after which the server pings a client
    keepalive_timeout_ms: int = 20_000  # how long the acknowledgement may take before the server closes the connection
    keepalive_permit_without_calls: bool = False  # whether clients without calls are pinged
    http2_max_pings_without_data: int = 2  # pings that the server sends without data in between
    http2_min_recv_ping_interval_without_data_ms: int = 300_000  # a client's faster pings are strikes
    http2_max_ping_strikes: int = 2  # strikes after which the connection ends; 0 for no limit
    max_connection_age_ms: int = 0  # age at which a connection is drained; 0 for never
    max_connection_age_grace_ms: int = 0  # how long its calls may then continue; 0 for no limit
    message_timeout_ms: int = 60_000  # how long an incomplete message may not grow; 0 for any time
    response_compression: CompressionLevel = CompressionLevel.NONE

    def keepalive(self) -> KeepaliveSettings:
        return KeepaliveSettings(
            keepalive_time=_seconds(max(self.keepalive_time_ms, 1)),  # as gRPC; 0 would keep the event loop busy
            keepalive_timeout=_seconds(self.keepalive_timeout_ms),
            keepalive_without_calls=self.keepalive_permit_without_calls,
            max_pings_without_data=self.http2_max_pings_without_data,
            min_ping_interval=self.http2_min_recv_ping_interval_without_data_ms / 1000,
            max_ping_strikes=self.http2_max_ping_strikes,
            max_age=_seconds(self.max_connection_age_ms or _INFINITE_MS),
            max_age_grace=_seconds(self.max_connection_age_grace_ms or _INFINITE_MS),
        )


def _seconds(milliseconds: int) -> float:
    return math.inf if milliseconds >= _INFINITE_MS else milliseconds / 1000
