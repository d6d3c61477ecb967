"""Content codings of request and response bodies.

gzip and deflate (zlib's format), in both directions. The response's coding is the one with the highest quality in
Accept-Encoding (SRV src/data_compressor.h, src/http_server.cc).
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable

from naiad.core.errors import UnsupportedRequestError
from naiad.frontends.decompression import Decompression
from naiad.protocol.inference import Buffer

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # RFC 9110, 12.4.2
_GZIP = 16 + zlib.MAX_WBITS
LONG_BODY = 1 << 18  # bytes from which a body is compressed on a thread: about 5 ms
# Bytes that are compressed in one step: about 20 ms of a thread, during which others have the interpreter's lock.
_STEP_SIZE = 1 << 20
_SUPPORTED = ("gzip", "deflate", "identity")


class UnknownCodingError(UnsupportedRequestError):
    """The body has an unsupported coding. The response must list the supported ones (RFC 9110, 15.5.16)."""


def begin_decompression(body: Buffer, coding: bytes, limit: int) -> Decompression | None:
    """The decompression of a body; None if it is not compressed, UnknownCodingError for an unsupported *coding*."""
    name = coding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _SUPPORTED:
        raise UnknownCodingError("Unsupported compression type")
    return Decompression(body, name, limit)


# Clients send one of a few values with every request. Of values made up to fill it, it keeps 64 heads at most.
@functools.lru_cache(maxsize=64)
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


class Compression:
    """A long body that is being compressed, in steps (`frontends/decompression.py`)."""

    __slots__ = ("_deflater", "_parts", "_position", "is_complete", "result")

    def __init__(self, parts: Iterable[Buffer], coding: str) -> None:
        self._deflater = zlib.compressobj(wbits=_GZIP if coding == "gzip" else zlib.MAX_WBITS)
        self._parts = [memoryview(part).cast("B") for part in parts if size_of(part)]
        self._position = 0  # in the first of them
        self.is_complete = False
        self.result = bytearray()

    @property
    def size(self) -> int:
        return len(self.result)

    def step(self) -> None:
        if not self._parts:
            self.result += self._deflater.flush()
            self.is_complete = True
            return
        part, start = self._parts[0], self._position
        self.result += self._deflater.compress(part[start : start + _STEP_SIZE])
        self._position += _STEP_SIZE
        if self._position >= len(part):
            del self._parts[0]
            self._position = 0


def size_of(part: Buffer) -> int:
    """Bytes of a part of a body. `len` of a view counts items of its first dimension."""
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    return float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
