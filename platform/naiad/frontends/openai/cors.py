"""Pages of other origins in browsers, which may ask if the operator names these (CORS).

Without that no page can: a server on somebody's own machine would else answer every page that is open there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naiad.frontends.http1.messages import Exchange, Request, response
from naiad.protocol.inference import Buffer

ANY = "*"
_NO_CONTENT = 204
_SECONDS = 600
"""How long a browser may remember what it was allowed."""


def allowed_lines(request: Request, origins: Sequence[str]) -> bytes:
    """The header lines that let the page that asks read the answer; none if it may not."""
    origin = request.headers.get(b"origin", b"")
    if not origin or not (ANY in origins or origin.decode("latin-1") in origins):
        return b""
    return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin


def is_preflight(request: Request) -> bool:
    """Whether a browser asks what it may ask."""
    return request.method == "OPTIONS" and b"access-control-request-method" in request.headers


def preflight(request: Request) -> list[Buffer]:
    """The answer to that; `CorsExchange` adds for whom."""
    names = request.headers.get(b"access-control-request-headers", b"authorization, content-type")
    lines = (
        b"Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Allow-Headers: %b\r\nAccess-Control-Max-Age: %d\r\n"
    )
    return response(_NO_CONTENT, [], b"", lines % (names, _SECONDS))


class CorsExchange(Exchange):
    """An exchange whose response has further header lines."""

    def __init__(self, exchange: Exchange, lines: bytes) -> None:
        """Answer on *exchange*; *lines* come into the head, each ending in CR LF."""
        self._exchange = exchange
        self._lines = lines

    @property
    def request(self) -> Request:
        """The request to answer."""
        return self._exchange.request

    @property
    def is_blocked(self) -> bool:
        """As that of the exchange."""
        return self._exchange.is_blocked

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Write the response, or the rest of one begun with `write`."""
        self._exchange.respond([self._headed(parts[0]), *parts[1:]] if parts else parts)

    def write(self, part: Buffer) -> None:
        """Write a part."""
        self._exchange.write(self._headed(part))

    def on_resume(self, resume: Callable[[], None]) -> None:
        """As that of the exchange."""
        self._exchange.on_resume(resume)

    def on_disconnect(self, ticket: int) -> None:
        """As that of the exchange."""
        self._exchange.on_disconnect(ticket)

    def _headed(self, part: Buffer) -> Buffer:
        lines, self._lines = self._lines, b""
        if not lines:
            return part
        status, end, rest = bytes(part).partition(b"\r\n")
        return status + end + lines + rest
