"""Content codings of request and response bodies.

gzip and deflate (zlib's format), in both directions. The response's coding is the one with the highest quality in
Accept-Encoding (SRV src/data_compressor.h, src/http_server.cc).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from naiad.errors import InvalidRequestError, UnsupportedRequestError
from naiad.protocol.inference import Buffer

_GZIP = 16 + zlib.MAX_WBITS
_DETECT = 32 + zlib.MAX_WBITS  # zlib detects gzip or zlib format by the header
_CHUNK = 1 << 20
_SUPPORTED = ("gzip", "deflate", "identity")


class UnknownCodingError(UnsupportedRequestError):
    """The body has an unsupported coding. The response must list the supported ones (RFC 9110, 15.5.16)."""


def decompress(body: Buffer, coding: bytes, limit: int) -> Buffer:
    """The uncompressed body.

    Args:
        body: As received.
        coding: Value of Content-Encoding; empty for none.
        limit: Maximum size of the uncompressed body in bytes.

    Raises:
        UnknownCodingError: For a coding other than gzip, deflate and identity.
        InvalidRequestError: If the body does not have that coding, or is too long.
    """
    name = coding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _SUPPORTED:
        raise UnknownCodingError("Unsupported compression type")
    inflater = zlib.decompressobj(_DETECT)
    parts: list[bytes] = []
    size = 0
    rest: Buffer = body
    try:
        while rest and not inflater.eof:
            part = inflater.decompress(rest, _CHUNK)
            rest = inflater.unconsumed_tail
            size += len(part)
            if size > limit:
                raise InvalidRequestError(f"cannot decompress the request body: it exceeds the limit of {limit} bytes")
            parts.append(part)
    except zlib.error as problem:
        raise InvalidRequestError(f"cannot decompress the request body as {name}: {problem}") from None
    if not inflater.eof:
        raise InvalidRequestError(f"cannot decompress the request body as {name}: it is truncated")
    return b"".join(parts)


def preferred_coding(accepted: bytes) -> str:
    """The coding for a response: the supported one with the highest quality in Accept-Encoding, else identity."""
    best, best_quality = "identity", 0.0
    for entry in accepted.decode("latin-1").split(","):
        name, _, parameters = entry.strip().partition(";")
        name = name.strip().lower()
        if name == "*":
            name = "gzip"
        quality = _quality(parameters)
        if name in _SUPPORTED and quality > best_quality:
            best, best_quality = name, quality
    return best


def compress(parts: Iterable[Buffer], coding: str) -> bytes:
    """The body in *coding* (gzip or deflate)."""
    deflater = zlib.compressobj(wbits=_GZIP if coding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*(deflater.compress(part) for part in parts), deflater.flush()])


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
