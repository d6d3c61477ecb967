"""One HTTP request, the exchange that responds to it, and the bytes of responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import orjson

from naiad.core.errors import NaiadError
from naiad.frontends.request_budget import Charge
from naiad.frontends.status import HTTP_STATUS
from naiad.protocol.inference import Buffer, SubmittedRequest

# As RFC 9110 (section 15) names them: Python before 3.13 has the names of older RFCs for the last four.
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus} | {
    413: b"Content Too Large",
    414: b"URI Too Long",
    416: b"Range Not Satisfiable",
    422: b"Unprocessable Content",
}
JSON = b"application/json"
BINARY = b"application/octet-stream"
INTERNAL_ERROR = "internal error; the server's log has the details"


@dataclass(slots=True)
class HttpRequest:
    """A whole request."""

    method: str
    path: bytes  # the path as sent, without the query
    headers: Mapping[bytes, bytes]  # values by lower-case name; the last one of a repeated header
    body: Buffer  # the body as received, compressed where the client compressed it
    keep_alive: bool
    can_chunk: bool = True  # whether the client knows the chunked transfer coding (HTTP/1.1)
    charge: Charge | None = None  # what a decompressed body counts in the budget
    query: bytes = b""  # The query as sent, without its question mark. KServe's paths ignore it, as the reference does.
    response_lines: bytes = b""  # header lines that its response has in addition, each ending in CR LF


class HttpExchange(Protocol):
    """One request of a connection, and the means to respond to it."""

    @property
    def request(self) -> HttpRequest:
        """The request to respond to."""

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Write the whole response, made by `response` or `error`, or the rest of one begun with `write`.

        Exactly one call ends the exchange.
        """

    def write(self, part: Buffer) -> None:
        """Write a part of a streamed response. The first part is a `stream_head`."""

    @property
    def client_address(self) -> str:
        """The address of the client; "" where it has none."""

    @property
    def server_address(self) -> str:
        """The address of this machine to which the client connected; "" where it has none."""

    @property
    def is_connected(self) -> bool:
        """Whether the client is still connected."""

    def replace_body(self, body: Buffer, charge: Charge) -> None:
        """Free the request's body, and let it have *body* instead; release *charge* with the response."""

    @property
    def is_blocked(self) -> bool:
        """Whether the client reads more slowly than the server writes, so that further parts should wait."""

    def hold(self, size: int) -> None:
        """Count *size* bytes that wait for an exchange that is blocked, in place of those of an earlier call."""

    def on_resume(self, resume: Callable[[], None]) -> None:
        """Call *resume* each time the exchange is not blocked any more, or the client has disconnected."""

    def on_disconnect(self, submitted: SubmittedRequest) -> None:
        """Cancel a request if the client disconnects before the response is complete. Several requests add up."""


def response(status: int, body: Sequence[Buffer], content_type: bytes = JSON, extra: bytes = b"") -> list[Buffer]:
    """The parts of a response: status line, headers, *body*. Each of the *extra* header lines ends in CR LF."""
    length = sum(map(len, body))
    kind = b"Content-Type: %b\r\n" % content_type if content_type else b""
    head = b"HTTP/1.1 %d %b\r\n%b%bContent-Length: %d\r\n\r\n" % (
        status,
        reason_phrase(status),
        kind,
        extra,
        length,
    )
    return [head, *body]


def reason_phrase(status: int) -> bytes:
    """The words for a status in its status line."""
    return _REASONS.get(status, b"Unknown")


def with_lines(head: Buffer, lines: bytes) -> bytes:
    """A status line and headers with further header lines."""
    line, _, rest = bytes(head).partition(b"\r\n")
    return b"%b\r\n%b%b" % (line, lines, rest)


def stream_head(status: int, content_type: bytes, extra: bytes = b"", *, is_chunked: bool) -> bytes:
    """Status line and headers of a streamed response.

    Its body comes in chunks, or, for clients that do not know these, ends where the connection ends.
    """
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Connection: close"
    return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\n%b%b\r\n\r\n" % (
        status,
        reason_phrase(status),
        content_type,
        extra,
        framing,
    )


def json_response(value: object, status: int = 200) -> list[Buffer]:
    """A response with *value* as JSON."""
    return response(status, [orjson.dumps(value)])


def error(problem: NaiadError, *, extra: bytes = b"") -> list[Buffer]:
    """The response for an error: its status and `{"error": message}` (SRV src/http_server.cc)."""
    return error_text(HTTP_STATUS[problem.code], problem.message, extra=extra)


def error_text(status: int, message: str, *, extra: bytes = b"") -> list[Buffer]:
    """The response for an error with a given status."""
    return response(status, [error_document(message)], extra=extra)


def error_document(message: str) -> bytes:
    """`{"error": message}`."""
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
