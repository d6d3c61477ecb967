"""The fields of a request, checked as RFC 9113 (8.2, 8.3) asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from naiad.frontends.http2.field_blocks import Fields

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_WRONG_IN_VALUES = re.compile(rb"[\0\r\n]")
_OF_CONNECTIONS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_REQUIRED = _PSEUDO[:3]
_ADDED_TO_EACH = 32
_LENGTH = re.compile(rb"[0-9]{1,18}")


class MalformedError(ValueError):
    """Fields that are no request."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its content.

    Attributes:
        method: Such as `POST`.
        path: Its path.
        fields: All but those above and their like.
        content_length: The length that its content is said to have; -1 where nothing is said.
        size: Bytes of all fields as limits count them.
    """

    method: bytes
    path: bytes
    fields: Fields
    content_length: int
    size: int


def request_head(fields: Fields) -> RequestHead:
    """The request that fields are.

    Raises:
        MalformedError: If they are none.
    """
    pseudo: dict[bytes, bytes] = {}
    count = 0
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _PSEUDO or name in pseudo:
            raise MalformedError(f"{name!r} is unknown, or given twice")
        pseudo[name] = value
        count += 1
    if any(not pseudo.get(name) for name in _REQUIRED):
        raise MalformedError("a request needs :method, :scheme and :path")
    rest = fields[count:]
    length = check_fields(rest)
    size = sum([len(name) + len(value) + _ADDED_TO_EACH for name, value in fields])
    return RequestHead(pseudo[b":method"], pseudo[b":path"], rest, length, size)


def check_fields(fields: Fields) -> int:
    """Check fields that follow those with a colon, or trailers; return what they say about the content's length.

    Raises:
        MalformedError: If one must not be there.
    """
    length = -1
    for name, value in fields:
        if _NAME.fullmatch(name) is None or name in _OF_CONNECTIONS:
            raise MalformedError(f"{name!r} is no name of a field")
        if _WRONG_IN_VALUES.search(value) is not None or (name == b"te" and value.lower() != b"trailers"):
            raise MalformedError(f"{name!r} has a value it must not have")
        if name == b"content-length":
            if _LENGTH.fullmatch(value) is None or length not in {-1, int(value)}:
                raise MalformedError("content-length is no length")
            length = int(value)
    return length
