"""What one connection may ask for, and how fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a client may do.

    Attributes:
        streams: Open at a time.
        frame_size: Longest payload of a frame; long ones are read straight to where they belong.
        stream_window: Bytes that may be under way on a stream.
        window: Bytes that may be under way on all streams of a connection.
        block_size: Bytes of a block of fields as it travels.
        fields_size: Bytes of its fields, 32 added for each (RFC 9113, 6.5.2). What is above is refused on its stream.
        decoded_size: The same, but what is above ends the connection: it is not even decoded to the end.
        continuations: Frames that a block of fields may be cut into.
        resets: Streams that a client may take back, or have reset by its errors, at once (CVE-2023-44487,
            CVE-2025-8671). Clients do that with all their calls when they end.
        resets_per_second: The same in the long run.
        oddities: Frames that make work and bring nothing (empty DATA, PING, SETTINGS, PRIORITY and so on) at once.
        oddities_per_second: The same in the long run.
        streams_moved: With how many open streams new windows count as another such frame: all are gone through.
        unsent: Bytes that may wait for a client that does not read; beyond that nothing is read from it.
        handshake_seconds: Time from the connection to the client's preface.
    """

    streams: int = 1 << 14
    frame_size: int = 1 << 20
    stream_window: int = 1 << 23
    window: int = 1 << 25
    block_size: int = 1 << 16
    fields_size: int = 1 << 14
    decoded_size: int = 1 << 16
    continuations: int = 32
    resets: int = 1 << 14
    resets_per_second: int = 1000
    oddities: int = 10_000
    oddities_per_second: int = 1000
    streams_moved: int = 64
    unsent: int = 1 << 22
    handshake_seconds: float = 120


class Allowance:
    """So many at once, and so many per second in the long run."""

    __slots__ = ("_burst", "_left", "_per_second", "_since")

    def __init__(self, burst: int, per_second: int, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._since = now

    def take(self, now: float, count: int = 1) -> bool:
        """Take some; False where there are not so many left."""
        if self._left < count:
            self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
            self._since = now
            if self._left < count:
                return False
        self._left -= count
        return True
