"""Cross-origin requests (CORS): the operator names the origins whose pages may call the API from a browser.

By default no origin is allowed. Otherwise any page open in a browser could use a server on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naiad.frontends.http1.messages import HttpExchange, HttpRequest, response
from naiad.frontends.request_budget import Charge
from naiad.protocol.inference import Buffer, SubmittedRequest

ANY = "*"
_NO_CONTENT = 204
_MAX_AGE_SECONDS = 600  # how long a browser may cache the response to a preflight request


def allowed_lines(request: HttpRequest, origins: Sequence[str]) -> bytes:
    """The header lines that let the requesting page read the response; empty if its origin is not allowed."""
    origin = request.headers.get(b"origin", b"")
    if not origin or not (ANY in origins or origin.decode("latin-1") in origins):
        return b""
    return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin


def is_preflight(request: HttpRequest) -> bool:
    """Whether a browser asks for permission before the actual request."""
    return request.method == "OPTIONS" and b"access-control-request-method" in request.headers


def preflight_response(request: HttpRequest) -> list[Buffer]:
    """The response to a preflight request; `LinesExchange` adds the allowed origin."""
    names = request.headers.get(b"access-control-request-headers", b"authorization, content-type")
    lines = (
        b"Access-Control-Allow-Methods: GET, POST, DELETE\r\nAccess-Control-Allow-Headers: %b\r\n"
        b"Access-Control-Max-Age: %d\r\n"
    )
    return response(_NO_CONTENT, [], b"", lines % (names, _MAX_AGE_SECONDS))


class LinesExchange(HttpExchange):
    """An exchange that adds header lines to the response."""

    def __init__(self, exchange: HttpExchange, lines: bytes) -> None:
        """Respond on *exchange*; *lines* are added to the response's head, each ending in CR LF."""
        self._exchange = exchange
        self._lines = lines

    @property
    def request(self) -> HttpRequest:
        return self._exchange.request

    @property
    def client_address(self) -> str:
        return self._exchange.client_address

    @property
    def server_address(self) -> str:
        return self._exchange.server_address

    @property
    def is_connected(self) -> bool:
        return self._exchange.is_connected

    def replace_body(self, body: Buffer, charge: Charge) -> None:
        self._exchange.replace_body(body, charge)

    @property
    def is_blocked(self) -> bool:
        return self._exchange.is_blocked

    def respond(self, parts: Sequence[Buffer]) -> None:
        self._exchange.respond([self._add_lines(parts[0]), *parts[1:]] if parts else parts)

    def write(self, part: Buffer) -> None:
        self._exchange.write(self._add_lines(part))

    def hold(self, size: int) -> None:
        self._exchange.hold(size)

    def on_resume(self, resume: Callable[[], None]) -> None:
        self._exchange.on_resume(resume)

    def on_disconnect(self, submitted: SubmittedRequest) -> None:
        self._exchange.on_disconnect(submitted)

    def _add_lines(self, part: Buffer) -> Buffer:
        """*part* with the lines after its status line if it is the first part, which holds the head."""
        lines, self._lines = self._lines, b""
        if not lines:
            return part
        status, end, rest = bytes(part).partition(b"\r\n")
        return status + end + lines + rest
