"""What the fields of a request say about a call: which method, how long, how its messages are encoded, metadata.

Read once for all calls whose fields are equal bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from naiad.frontends.access import PROPAGATED
from naiad.frontends.grpc.messages import Encoding
from naiad.frontends.grpc.response_fields import refusal
from naiad.frontends.grpc.settings import CompressionLevel
from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.http2.request_head import RequestHead
from naiad.frontends.status import GrpcStatus

M = TypeVar("M")

_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?", re.IGNORECASE)
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_ENCODINGS: dict[bytes, Encoding] = {b"identity": "identity", b"deflate": "deflate", b"gzip": "gzip"}
_RANKED: tuple[Encoding, ...] = ("gzip", "deflate")
_OF_TRANSPORT = frozenset(
    {b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"host"}
)
_BINARY = "-bin"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CallHead(Generic[M]):
    """A call before its messages.

    Attributes:
        method: What is called; None where nothing may be.
        refusal: The answer to a call that is refused.
        timeout: Seconds that it may take.
        encoding: How its messages may be compressed.
        answers: How its answers shall be.
        metadata: Names and values that the caller sent.
        propagated: Those that say to which trace it belongs.
    """

    method: M | None
    refusal: Fields | None = None
    timeout: float | None = None
    encoding: Encoding = "identity"
    answers: Encoding = "identity"
    metadata: Metadata = ()
    propagated: Mapping[str, str] = field(default_factory=dict)


class HeadReader(Generic[M]):
    """Makes calls of requests."""

    def __init__(
        self,
        methods: Mapping[bytes, M],
        guard: Callable[[M, Mapping[str, str]], str],
        *,
        level: CompressionLevel = CompressionLevel.NONE,
        most: int,
    ) -> None:
        """Prepare.

        Args:
            methods: What can be called, by path.
            guard: Says why a method may not be called with some metadata; empty where it may.
            level: How hard answers are compressed.
            most: Bytes of fields in a request.
        """
        self._methods = methods
        self._guard = guard
        self._level = level
        self._most = most

    def read(self, head: RequestHead) -> CallHead[M]:
        """The call that a request is."""
        fields = dict(head.fields)
        kind = fields.get(b"content-type", b"")
        if _CONTENT_TYPE.fullmatch(kind) is None:
            return _refuse(GrpcStatus.INVALID_ARGUMENT, f"invalid gRPC request content-type {_text(kind)!r}", 415)
        if head.method != b"POST":
            return _refuse(GrpcStatus.INTERNAL, f"the method of a call is POST, not {_text(head.method)}", 405)
        if head.size > self._most:
            text = f"received metadata size exceeds hard limit ({head.size} vs. {self._most})"
            return _refuse(GrpcStatus.RESOURCE_EXHAUSTED, text)
        method = self._methods.get(head.path)
        if method is None:
            return _refuse(GrpcStatus.UNIMPLEMENTED, "Method not found!")
        timeout = fields.get(b"grpc-timeout")
        found = _TIMEOUT.fullmatch(timeout) if timeout is not None else None
        if timeout is not None and found is None:
            return _refuse(GrpcStatus.INTERNAL, f"malformed grpc-timeout: {_text(timeout)!r}")
        encoding = _ENCODINGS.get(fields.get(b"grpc-encoding", b"identity"))
        if encoding is None:
            name = _text(fields[b"grpc-encoding"])
            return _refuse(GrpcStatus.UNIMPLEMENTED, f"Compression algorithm '{name}' is not supported")
        metadata = _metadata(head.fields)
        by_name = dict(metadata)
        why_not = self._guard(method, by_name)
        if why_not:
            return _refuse(GrpcStatus.UNAVAILABLE, why_not)
        return CallHead(
            method,
            timeout=None if found is None else int(found[1]) * _SECONDS[found[2]],
            encoding=encoding,
            answers=encoding_of_level(self._level, fields.get(b"grpc-accept-encoding", b"")),
            metadata=metadata,
            propagated={name: by_name[name] for name in PROPAGATED if name in by_name},
        )


def encoding_of_level(level: CompressionLevel, accepted: bytes) -> Encoding:
    """The encoding that gRPC chooses for a level, of those that a client takes."""
    names = {name.strip() for name in accepted.split(b",")}
    able = [encoding for encoding in _RANKED if encoding.encode() in names]
    if level is CompressionLevel.NONE or not able:
        return "identity"
    if level is CompressionLevel.LOW:
        return able[0]
    return able[len(able) // 2] if level is CompressionLevel.MEDIUM else able[-1]


def _refuse(status: GrpcStatus, text: str, http_status: int = 200) -> CallHead[M]:
    return CallHead(None, refusal(status, text, http_status=http_status))


def _metadata(fields: Fields) -> Metadata:
    found: list[tuple[str, str]] = []
    for raw_name, raw in fields:
        if raw_name in _OF_TRANSPORT:
            continue
        name = _text(raw_name)
        if name.endswith(_BINARY):
            found += [(name, _text(_binary(value))) for value in raw.split(b",")]
        else:
            found.append((name, _text(raw)))
    return tuple(found)


def _binary(value: bytes) -> bytes:
    """A value of a field whose name says that it is binary; padding may be left out."""
    bare = value.strip().rstrip(b"=")
    try:
        return base64.b64decode(bare + b"=" * (-len(bare) % 4))
    except binascii.Error:
        return value


def _text(value: bytes) -> str:
    return value.decode("latin-1")
