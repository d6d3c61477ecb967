"""Settings of the transport, as the flags give them in milliseconds."""

from __future__ import annotations

import math

from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.http2.keepalive import KeepaliveSettings


def test_settings_in_milliseconds_become_those_of_the_transport():
    settings = GrpcSettings(
        keepalive_time_ms=1000,
        keepalive_timeout_ms=200,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=3,
        http2_min_recv_ping_interval_without_data_ms=4000,
        http2_max_ping_strikes=5,
        max_connection_age_ms=6000,
        max_connection_age_grace_ms=7000,
    )
    assert settings.keepalive() == KeepaliveSettings(
        keepalive_time=1,
        keepalive_timeout=0.2,
        keepalive_without_calls=True,
        max_pings_without_data=3,
        min_ping_interval=4,
        max_ping_strikes=5,
        max_age=6,
        max_age_grace=7,
    )
    shortest = GrpcSettings(keepalive_time_ms=0, max_connection_age_ms=0, max_connection_age_grace_ms=0).keepalive()
    assert (shortest.keepalive_time, shortest.max_age, shortest.max_age_grace) == (0.001, math.inf, math.inf)
