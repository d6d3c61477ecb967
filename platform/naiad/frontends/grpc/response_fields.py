"""Field sections of responses: constant ones, and those of errors.

A gRPC status travels in trailers: `grpc-status` is a number, `grpc-message` a percent-encoded text. A call that fails
before its first message has one field section, "trailers-only", which holds both.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from naiad.frontends.grpc.messages import Encoding
from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.status import GrpcStatus

_HEADERS: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_ACCEPT_ENCODING: Fields = ((b"grpc-accept-encoding", b"identity, deflate, gzip"),)

HEADERS: dict[Encoding, Fields] = {
    "identity": (*_HEADERS, *_ACCEPT_ENCODING),
    "deflate": (*_HEADERS, (b"grpc-encoding", b"deflate"), *_ACCEPT_ENCODING),
    "gzip": (*_HEADERS, (b"grpc-encoding", b"gzip"), *_ACCEPT_ENCODING),
}  # the first fields of a response, by the encoding of its messages

OK_TRAILERS: Fields = ((b"grpc-status", b"0"),)  # the trailers of a call that succeeded

_MAX_MESSAGE = 6_000
"""Bytes of `grpc-message`. Clients reject fields of 8 KB or more, and a traceback that exceeds it would reach them as
RESOURCE_EXHAUSTED without its text."""

_ELLIPSIS = " [...] "
_ENCODED = re.compile(rb"[^ -$&-~]|^ | $")
"""Bytes to encode: all but printable ASCII, `%` itself, and spaces at either end (RFC 9113, section 8.2.1, forbids
them)."""


def error_trailers(status: GrpcStatus, text: str) -> Fields:
    """The trailers of a call that failed."""
    writable = text.encode(errors="replace").decode()  # lone surrogates cannot be encoded
    return (b"grpc-status", str(int(status)).encode()), (b"grpc-message", percent_encode(shorten(writable)))


def trailers_only(status: GrpcStatus, text: str, *, http_status: int = 200) -> Fields:
    """The only fields of a response that is an error and nothing else."""
    first = _HEADERS if http_status == 200 else ((b":status", str(http_status).encode()), *_HEADERS[1:])  # noqa: PLR2004 - HTTP's OK
    more = _ACCEPT_ENCODING if status is GrpcStatus.UNIMPLEMENTED else ()
    return (*first, *more, *error_trailers(status, text))


def percent_encode(text: str) -> bytes:
    """A text as `grpc-message` carries it."""
    return _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], text.encode())


def shorten(text: str, limit: int = _MAX_MESSAGE) -> str:
    """A text that has at most *limit* bytes when percent-encoded, its middle removed if it is longer.

    The beginning says what failed; the end of a traceback says why.
    """
    if len(text) * 3 <= limit or len(quote(text)) <= limit:
        return text
    half = (limit - len(quote(_ELLIPSIS))) // 2
    return _take(text, half, from_end=False) + _ELLIPSIS + _take(text, half, from_end=True)


def _take(text: str, limit: int, *, from_end: bool) -> str:
    """The longest beginning or end of a text with at most *limit* percent-encoded bytes."""
    size = 0
    for count in range(len(text)):
        size += len(quote(text[-1 - count] if from_end else text[count]))
        if size > limit:
            return text[len(text) - count :] if from_end else text[:count]
    return text
