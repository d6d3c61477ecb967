"""What can be set about the gRPC transport; defaults are the reference's (SRV src/command_line_parser.cc)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from naiad.frontends.grpc.codec import MAX_MESSAGE_SIZE


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

    def channel_options(self, *, reuse_port: bool) -> list[tuple[str, int]]:
        """The same as channel arguments of gRPC."""
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_SIZE),
            ("grpc.max_send_message_length", MAX_MESSAGE_SIZE),
            ("grpc.so_reuseport", int(reuse_port)),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            # Newer versions of gRPC wait so long for the answer to a ping, whatever the one above says.
            ("grpc.http2.ping_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", int(self.keepalive_permit_without_calls)),
            ("grpc.http2.max_pings_without_data", self.http2_max_pings_without_data),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                self.http2_min_recv_ping_interval_without_data_ms,
            ),
            ("grpc.http2.max_ping_strikes", self.http2_max_ping_strikes),
        ]
        if self.max_connection_age_ms:
            options.append(("grpc.max_connection_age_ms", self.max_connection_age_ms))
        if self.max_connection_age_grace_ms:
            options.append(("grpc.max_connection_age_grace_ms", self.max_connection_age_grace_ms))
        if self.response_compression is not CompressionLevel.NONE:
            options.append(("grpc.default_compression_level", int(self.response_compression)))
        return options
