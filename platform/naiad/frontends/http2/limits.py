"""Bounds on what one client may ask of a connection, and how fast.

HTTP/2 multiplexes: a single TCP connection, opened once, can make the server work without bound. Each bound below
limits one kind of abuse that needs few bytes of the client and much work or memory of the server. A peer that exceeds
one gets GOAWAY with ENHANCE_YOUR_CALM (section 7); other connections notice nothing. RFC 9113 lists the concerns in
section 10.5.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds on one connection.

    Attributes:
        streams: Open streams (SETTINGS_MAX_CONCURRENT_STREAMS, section 5.1.2). A further one is refused with
            REFUSED_STREAM, upon which the client may send the request again.
        frame_size: Bytes of a frame's payload (SETTINGS_MAX_FRAME_SIZE, section 4.2). Larger than the default of 16 KiB
            because DATA of long frames is read straight into the message's buffer.
        stream_window: Bytes of DATA that a client may send on a stream before the server opens the window again
            (section 6.9.1); also the most that a slow call can make the server buffer.
        window: The same for all streams of a connection together.
        block_size: Bytes of a field block, as compressed (section 4.3).
        fields_size: Bytes of a request's decoded fields, plus 32 for each (SETTINGS_MAX_HEADER_LIST_SIZE, section
            6.5.2). A larger request fails alone.
        decoded_size: The same measure; beyond it decoding stops and the connection ends. A byte of HPACK can mean
            a field of 4 KB ("HPACK bomb"), so decoding a block to its end is not an option.
        continuations: Frames of one field block (CVE-2024-27316: CONTINUATION without end).
        resets: Burst of streams that the client resets (CVE-2023-44487, "rapid reset") or that the server resets
            because of the client's errors (CVE-2025-8671, "made you reset"). Large, since a client that ends cancels
            all its calls at once.
        resets_per_second: The sustained rate of the same.
        control_frames: Burst of frames that cost work and carry nothing: empty DATA, PING, SETTINGS, PRIORITY, unknown
            types (CVE-2019-9512, -9515, -9518).
        control_frames_per_second: The sustained rate of the same.
        streams_per_window_change: A new SETTINGS_INITIAL_WINDOW_SIZE moves the window of each open stream (section
            6.9.2). It costs one more control frame for every so many open streams.
        unsent: Bytes that may wait in the transport for a client that does not read. Beyond that the server stops
            reading from it: acknowledgements and error responses need no window, so flow control does not bound them.
        handshake_seconds: Seconds from the TCP connection to the client's preface.
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
    control_frames: int = 10_000
    control_frames_per_second: int = 1000
    streams_per_window_change: int = 64
    unsent: int = 1 << 22
    handshake_seconds: float = 120


class TokenBucket:
    """A rate limit: a burst of tokens, refilled at a constant rate. It has no clock; callers pass the time."""

    __slots__ = ("_burst", "_per_second", "_refilled_at", "_tokens")

    def __init__(self, burst: int, per_second: int, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = float(burst)
        self._refilled_at = now

    def take(self, now: float, count: int = 1) -> bool:
        """Take *count* tokens; False where fewer are left."""
        # Refilled only when empty: the usual call is one comparison and one subtraction.
        if self._tokens < count:
            self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._per_second)
            self._refilled_at = now
            if self._tokens < count:
                return False
        self._tokens -= count
        return True
