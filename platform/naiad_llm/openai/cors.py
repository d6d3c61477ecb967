"""Cross-origin requests (CORS): the operator names the origins whose pages may call the API from a browser.

By default no origin is allowed. Otherwise any page open in a browser could use a server on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.frontends.http1.messages import HttpRequest, response
from naiad.protocol.inference import Buffer

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
    """The response to a preflight request; `allowed_lines` has the allowed origin."""
    names = request.headers.get(b"access-control-request-headers", b"authorization, content-type")
    lines = (
        b"Access-Control-Allow-Methods: GET, POST, DELETE\r\nAccess-Control-Allow-Headers: %b\r\n"
        b"Access-Control-Max-Age: %d\r\n"
    )
    return response(_NO_CONTENT, [], b"", lines % (names, _MAX_AGE_SECONDS))
