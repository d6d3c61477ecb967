"""The fields of answers: constant ones, and those of errors."""

from __future__ import annotations

import re
from urllib.parse import quote

from naiad.frontends.grpc.messages import Encoding
from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.status import GrpcStatus

_BEGIN: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_ACCEPTED: Fields = ((b"grpc-accept-encoding", b"identity, deflate, gzip"),)

OK: Fields = ((b"grpc-status", b"0"),)
"""The last fields of an answer without an error."""

BEGIN: dict[Encoding, Fields] = {
    "identity": (*_BEGIN, *_ACCEPTED),
    "deflate": (*_BEGIN, (b"grpc-encoding", b"deflate"), *_ACCEPTED),
    "gzip": (*_BEGIN, (b"grpc-encoding", b"gzip"), *_ACCEPTED),
}
"""The first fields of an answer, by the encoding of its messages."""

_MAX_DETAILS = 6_000
"""Bytes of an error text as it travels. It goes into a field, clients refuse 8 KB of these, and a longer text (a
traceback) would reach them as RESOURCE_EXHAUSTED without a word of what happened."""

_CUT_MARK = " [...] "
_ENCODED = re.compile(rb"[^ -$&-~]|^ | $")
"""A field may neither begin nor end with a space (RFC 9113, 8.2.1)."""


def trailers(status: GrpcStatus, text: str) -> Fields:
    """The last fields of an answer that ends with an error."""
    writable = text.encode(errors="replace").decode()
    return (b"grpc-status", str(int(status)).encode()), (b"grpc-message", encoded(fit_details(writable)))


def refusal(status: GrpcStatus, text: str, *, http_status: int = 200) -> Fields:
    """The only fields of an answer that is an error and nothing else."""
    begin = _BEGIN if http_status == 200 else ((b":status", str(http_status).encode()), *_BEGIN[1:])  # noqa: PLR2004
    more = _ACCEPTED if status is GrpcStatus.UNIMPLEMENTED else ()
    return (*begin, *more, *trailers(status, text))


def encoded(text: str) -> bytes:
    """A text as `grpc-message` carries it: percent-encoded, as far as it must be."""
    return _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], text.encode())


def fit_details(text: str, limit: int = _MAX_DETAILS) -> str:
    """Cut the middle out of a text that is longer than *limit* bytes once percent-encoded.

    The beginning says what failed; the end of a traceback says why.
    """
    if len(text) * 3 <= limit or len(quote(text)) <= limit:
        return text
    half = (limit - len(quote(_CUT_MARK))) // 2
    head = _longest(text, half, from_end=False)
    tail = _longest(text, half, from_end=True)
    return head + _CUT_MARK + tail


def _longest(text: str, limit: int, *, from_end: bool) -> str:
    size = 0
    for count in range(len(text)):
        size += len(quote(text[-1 - count] if from_end else text[count]))
        if size > limit:
            return text[len(text) - count :] if from_end else text[:count]
    return text
