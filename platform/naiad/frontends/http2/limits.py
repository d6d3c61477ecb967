"""Bounds on what one client may ask of a connection, and what its frames may cost.

HTTP/2 multiplexes: a single TCP connection, opened once, can make the server work without bound. Each bound below
limits one kind of abuse that needs few bytes of the client and much work or memory of the server. A peer that exceeds
one gets GOAWAY with ENHANCE_YOUR_CALM (section 7); other connections notice nothing. RFC 9113 lists the concerns in
section 10.5.

How many frames are too many depends on what they cost and on what they are for, so frames are not counted. The
connection keeps an account (`flood_account.py`) of the processor time that its frames without work cost.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIN_SHARE = 64  # streams that a connection may always open


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds on one connection."""

    # Open streams (SETTINGS_MAX_CONCURRENT_STREAMS, section 5.1.2). A further one is refused with REFUSED_STREAM, upon
    # which the client may send the request again.
    streams: int = 1 << 14
    # Open streams of all connections together; each takes up to 3 KB of memory. Beyond it, a stream is refused if its
    # connection has its share already: the same for each connection, and at least 64. Beyond twice the number, a share
    # is 64 streams.
    all_streams: int = 1 << 15
    # Bytes of a frame's payload (SETTINGS_MAX_FRAME_SIZE, section 4.2). Larger than the default of 16 KiB because DATA
    # of long frames is read straight into the message's buffer.
    frame_size: int = 1 << 20
    # Bytes of DATA that a client may send on a stream before the server opens the window again (section 6.9.1); also
    # the most that a slow call can make the server buffer.
    stream_window: int = 1 << 23
    window: int = 1 << 25  # the same for all streams of a connection together
    block_size: int = 1 << 16  # bytes of a field block, as compressed (section 4.3)
    # Bytes of a field block that are compressed by Huffman's code: each costs as much as a hundred others. Half of
    # *block_size* is enough for every request whose fields are below *fields_size*.
    huffman_size: int = 1 << 15
    # Bytes of a request's decoded fields, plus 32 for each (SETTINGS_MAX_HEADER_LIST_SIZE, section 6.5.2). A larger
    # request fails alone.
    fields_size: int = 1 << 14
    # The same measure; beyond it decoding stops and the connection ends. A byte of HPACK can mean a field of 4 KB
    # ("HPACK bomb"), so decoding a block to its end is not an option.
    decoded_size: int = 1 << 16
    continuations: int = 32  # frames of one field block (CVE-2024-27316: CONTINUATION without end)
    settings_size: int = 1 << 10  # Bytes of one SETTINGS frame. The six settings that are defined take 36 bytes.
    # Processor time that frames without work may cost in a burst, as `flood_account.py` estimates it. Large, since a
    # client that ends cancels all its calls at once: 16,384 of them cost 0.5 s.
    overhead_seconds: float = 1.0
    overhead_share: float = 0.25  # the same for each second in which the connection did not keep the server busy
    # Bytes that may wait in the transport for a client that does not read. Beyond that the server stops reading from
    # it: acknowledgements and error responses need no window, so flow control does not bound them.
    unsent: int = 1 << 22
    handshake_seconds: float = 120  # seconds from the TCP connection to the client's preface


class StreamCount:
    """Counts the open streams of all connections of a server."""

    __slots__ = ("_limit", "open")

    def __init__(self, limits: Http2Limits) -> None:
        self.open = 0
        self._limit = limits.all_streams

    def has_room(self, own: int, connections: int) -> bool:
        if self.open < self._limit or own < _MIN_SHARE:
            return True
        # Beyond the limit, later connections get their share of it; these shares add up to at most the limit.
        return own < self._limit // max(connections, 1) and self.open < 2 * self._limit
