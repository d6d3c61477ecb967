"""What a server says first: its settings, or that the client speaks something else."""

from __future__ import annotations

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import DEFAULT_WINDOW, Setting
from naiad.frontends.http2.limits import Limits

_SENTENCE = (
    b"This port speaks HTTP/2 and nothing older, as clients of gRPC do; with TLS, clients must offer h2 by ALPN. "
    b"HTTP/1.1 is spoken at another port.\n"
)

NOT_HTTP_2 = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)
"""To a client without a preface: no GOAWAY is owed to it (RFC 9113, 3.4), and these words it may show to somebody."""


def greeting(limits: Limits) -> bytes:
    """The first frames to a client that speaks HTTP/2."""
    own = (
        (Setting.MAX_CONCURRENT_STREAMS, limits.streams),
        (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
        (Setting.MAX_FRAME_SIZE, limits.frame_size),
        (Setting.MAX_HEADER_LIST_SIZE, limits.fields_size),
    )
    return frames.settings(own) + frames.window_update(0, limits.window - DEFAULT_WINDOW)
