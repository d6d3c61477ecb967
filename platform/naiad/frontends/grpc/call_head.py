"""The fields of a request, read as the head of a gRPC call: its method, deadline, encodings and metadata.

Parsed once for all calls whose field blocks have equal bytes (see `http2/field_blocks.py`), so nothing here depends on
a single call.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from naiad.frontends.access import PROPAGATED_HEADERS, Denial
from naiad.frontends.grpc.messages import Encoding
from naiad.frontends.grpc.response_fields import trailers_only
from naiad.frontends.grpc.settings import CompressionLevel
from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.http2.request_head import RequestHead
from naiad.frontends.status import GrpcStatus

M = TypeVar("M")
Metadata = tuple[tuple[str, str], ...]  # names and values, in their order; names may be repeated

_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?", re.IGNORECASE)
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_ENCODINGS: dict[bytes, Encoding] = {b"identity": "identity", b"deflate": "deflate", b"gzip": "gzip"}
_RANKED: tuple[Encoding, ...] = ("gzip", "deflate")
"""Encodings from the lowest to the highest level of compression, in gRPC's order."""
_TRANSPORT_FIELDS = frozenset(
    {b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"host"}
)  # fields that are not metadata
_BINARY_SUFFIX = "-bin"


@dataclass(frozen=True, slots=True)
class CallHead(Generic[M]):
    """A call before its messages."""

    method: M | None  # what is called; None for a call that is rejected
    rejection: Fields | None = None  # the response to a call that is rejected
    wrong_secret: str = ""  # the wrong secret for which it is rejected; "" for another reason
    timeout: float | None = None  # seconds until the call's deadline; None without one
    encoding: Encoding = "identity"  # how the client may compress its messages
    response_encoding: Encoding = "identity"
    metadata: Metadata = ()
    propagated: Mapping[str, str] = field(default_factory=dict)  # names the trace which the call belongs to


@dataclass(frozen=True, slots=True)
class CallHeadParser(Generic[M]):
    """Parses and checks the heads of calls."""

    _methods: Mapping[bytes, M]
    _denial: Callable[[M, Metadata], Denial | None]  # why a method may not be called; None where it may
    _level: CompressionLevel
    _max_size: int  # bytes of a request's fields

    def parse(self, head: RequestHead) -> CallHead[M]:
        """The call that a request begins. A request that is not a valid call becomes a rejection."""
        fields = dict(head.fields)
        content_type = fields.get(b"content-type", b"")
        if _CONTENT_TYPE.fullmatch(content_type) is None:
            text = f"invalid gRPC request content-type {_text(content_type)!r}"
            return _reject(GrpcStatus.INVALID_ARGUMENT, text, 415)
        if head.method != b"POST":
            text = f"invalid gRPC request method {_text(head.method)}: calls use POST"
            return _reject(GrpcStatus.INTERNAL, text, 405)
        if head.size > self._max_size:
            text = f"received metadata size exceeds hard limit ({head.size} vs. {self._max_size})"
            return _reject(GrpcStatus.RESOURCE_EXHAUSTED, text)
        method = self._methods.get(head.path)
        if method is None:
            return _reject(GrpcStatus.UNIMPLEMENTED, "Method not found!")
        timeout = fields.get(b"grpc-timeout")
        parsed_timeout = _TIMEOUT.fullmatch(timeout) if timeout is not None else None
        if timeout is not None and parsed_timeout is None:
            return _reject(GrpcStatus.INTERNAL, f"malformed grpc-timeout: {_text(timeout)!r}")
        encoding = _ENCODINGS.get(fields.get(b"grpc-encoding", b"identity"))
        if encoding is None:
            name = _text(fields[b"grpc-encoding"])
            return _reject(GrpcStatus.UNIMPLEMENTED, f"Compression algorithm '{name}' is not supported")
        metadata = _parse_metadata(head.fields)
        denial = self._denial(method, metadata)
        if denial is not None:
            return _reject(GrpcStatus.UNAVAILABLE, denial.text, wrong_secret=denial.wrong_secret)
        by_name = dict(metadata)
        return CallHead(
            method,
            timeout=None if parsed_timeout is None else int(parsed_timeout[1]) * _SECONDS[parsed_timeout[2]],
            encoding=encoding,
            response_encoding=encoding_of_level(self._level, fields.get(b"grpc-accept-encoding", b"")),
            metadata=metadata,
            propagated={name: by_name[name] for name in PROPAGATED_HEADERS if name in by_name},
        )


def encoding_of_level(level: CompressionLevel, accepted: bytes) -> Encoding:
    """The encoding that gRPC chooses for a level, among those that a client accepts."""
    names = {name.strip() for name in accepted.split(b",")}
    usable = [encoding for encoding in _RANKED if encoding.encode() in names]
    if level is CompressionLevel.NONE or not usable:
        return "identity"
    if level is CompressionLevel.LOW:
        return usable[0]
    return usable[len(usable) // 2] if level is CompressionLevel.MEDIUM else usable[-1]


def _reject(status: GrpcStatus, text: str, http_status: int = 200, wrong_secret: str = "") -> CallHead[M]:
    return CallHead(None, trailers_only(status, text, http_status=http_status), wrong_secret)


def _parse_metadata(fields: Fields) -> Metadata:
    metadata: list[tuple[str, str]] = []
    for raw_name, raw in fields:
        if raw_name in _TRANSPORT_FIELDS:
            continue
        name = _text(raw_name)
        if name.endswith(_BINARY_SUFFIX):
            metadata += [(name, _text(_decode_base64(value))) for value in raw.split(b",")]
        else:
            metadata.append((name, _text(raw)))
    return tuple(metadata)


def _decode_base64(value: bytes) -> bytes:
    """The value of a binary field. Senders may omit the padding; a value that is not base64 is kept as it is."""
    bare = value.strip().rstrip(b"=")
    try:
        return base64.b64decode(bare + b"=" * (-len(bare) % 4))
    except binascii.Error:
        return value


def _text(value: bytes) -> str:
    return value.decode("latin-1")
