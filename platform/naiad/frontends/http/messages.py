"""One HTTP request and how its response is written: values between the connection and the endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import orjson

from naiad.errors import NaiadError
from naiad.frontends.status import HTTP_STATUS
from naiad.protocol.inference import Buffer

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
JSON = b"application/json"
BINARY = b"application/octet-stream"


@dataclass(slots=True)
class Request:
    """A whole request.

    Attributes:
        method: Such as `GET`, in upper case.
        path: The path as sent, without the query.
        headers: Values by lower-case name; the last one of a repeated header.
        body: The body as received, still compressed if it was.
        keep_alive: Whether the connection may serve another request.
    """

    method: str
    path: bytes
    headers: Mapping[bytes, bytes]
    body: Buffer
    keep_alive: bool


class Exchange(Protocol):
    """The place of one request on its connection: what an endpoint needs to answer it."""

    @property
    def request(self) -> Request:
        """The request to answer."""

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Write the whole response, made by `response` or `error`; exactly one call ends the exchange."""

    def on_disconnect(self, ticket: int) -> None:
        """Remember what to cancel should the client go away before the answer."""


def response(status: int, body: Sequence[Buffer], content_type: bytes = JSON, extra: bytes = b"") -> list[Buffer]:
    """The parts of a response: status line and headers, then *body*.

    Args:
        status: HTTP status.
        body: Parts of the body, written as they are.
        content_type: Value of Content-Type; empty for none.
        extra: Further header lines, each ending in CR LF.
    """
    length = sum(map(len, body))
    kind = b"Content-Type: %b\r\n" % content_type if content_type else b""
    head = b"HTTP/1.1 %d %b\r\n%b%bContent-Length: %d\r\n\r\n" % (
        status,
        _REASONS.get(status, b"Unknown"),
        kind,
        extra,
        length,
    )
    return [head, *body]


def json_response(value: object, status: int = 200) -> list[Buffer]:
    """A response with *value* as JSON."""
    return response(status, [orjson.dumps(value)])


def error(problem: NaiadError, *, extra: bytes = b"") -> list[Buffer]:
    """The response for an error: its status and `{"error": message}` (SRV src/http_server.cc)."""
    return error_text(HTTP_STATUS[problem.code], problem.message, extra=extra)


def error_text(status: int, message: str, *, extra: bytes = b"") -> list[Buffer]:
    """The response for an error of a given status."""
    body = orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
    return response(status, [body], extra=extra)
