"""The fields of a request, validated as sections 8.2 and 8.3 require."""

from __future__ import annotations

import re
from dataclasses import dataclass

from naiad.frontends.http2.field_blocks import FIELD_OVERHEAD, Fields

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")  # a field's name: a token without upper case (section 8.2.1)
_FORBIDDEN_IN_VALUES = re.compile(rb"[\0\r\n]")
# Fields of HTTP/1.1 that HTTP/2 forbids (section 8.2.2).
_CONNECTION_FIELDS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO_FIELDS = (b":method", b":scheme", b":path", b":authority")
_REQUIRED_PSEUDO_FIELDS = _PSEUDO_FIELDS[:3]
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")  # bounded: Python refuses to convert numbers of more than 4,300 digits


class InvalidFieldsError(ValueError):
    """Fields that make a request malformed (section 8.1.1). It ends their stream alone."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its content."""

    method: bytes
    path: bytes
    fields: Fields  # all fields but the pseudo-fields, in their order
    content_length: int  # the value of `content-length`; -1 without one
    size: int  # bytes of all fields, plus 32 for each, as SETTINGS_MAX_HEADER_LIST_SIZE counts them


def parse_request_head(fields: Fields) -> RequestHead:
    """The request that fields describe; InvalidFieldsError if it is malformed."""
    pseudo: dict[bytes, bytes] = {}
    count = 0
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _PSEUDO_FIELDS or name in pseudo:
            raise InvalidFieldsError(f"pseudo-field {name!r} is unknown or repeated")
        pseudo[name] = value
        count += 1
    if any(not pseudo.get(name) for name in _REQUIRED_PSEUDO_FIELDS):
        raise InvalidFieldsError("a request needs :method, :scheme and :path")
    rest = fields[count:]  # a pseudo-field behind other fields fails as an invalid name
    length = check_fields(rest)
    size = sum([len(name) + len(value) + FIELD_OVERHEAD for name, value in fields])
    return RequestHead(pseudo[b":method"], pseudo[b":path"], rest, length, size)


def check_fields(fields: Fields) -> int:
    """Check fields or trailers; return `content-length` or -1. InvalidFieldsError if one is malformed or forbidden."""
    length = -1
    for name, value in fields:
        if _NAME.fullmatch(name) is None or name in _CONNECTION_FIELDS:
            raise InvalidFieldsError(f"invalid field name {name!r}")
        if _FORBIDDEN_IN_VALUES.search(value) is not None or (name == b"te" and value.lower() != b"trailers"):
            raise InvalidFieldsError(f"invalid value of field {name!r}")
        if name == b"content-length":
            if _CONTENT_LENGTH.fullmatch(value) is None or length not in {-1, int(value)}:
                raise InvalidFieldsError("invalid content-length")
            length = int(value)
    return length
