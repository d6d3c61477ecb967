"""The handler of `/ui`, the page, and of `/ui/state`, the document it polls, on the HTTP port."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from importlib import resources

from naiad.frontends.console.state import ConsoleState
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, error_text, json_response, response

logger = logging.getLogger("naiad.ui")

_PAGE = "/ui"
_STATE = "/ui/state"
_OK = 200
_NOT_ALLOWED = 405
_INTERNAL = 500


class Console:
    """Handles requests for the page and its document."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()
        text = resources.files("naiad.frontends.console").joinpath("page.html").read_text(encoding="utf-8")
        self._page = text.encode()
        policy = _content_security_policy(text)
        self._headers = f"Content-Security-Policy: {policy}\r\nCache-Control: no-cache\r\n".encode()

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Handle a request below `/ui`; return False for any other path."""
        path = exchange.request.path.decode("latin-1").rstrip("/")
        if path not in {_PAGE, _STATE}:
            return False
        if exchange.request.method not in {"GET", "HEAD"}:
            exchange.respond(error_text(_NOT_ALLOWED, "Method Not Allowed", extra=b"Allow: GET, HEAD\r\n"))
        elif path == _STATE:
            task = asyncio.get_running_loop().create_task(self._respond_with_state(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            exchange.respond(response(_OK, [self._page], b"text/html; charset=utf-8", self._headers))
        return True

    async def _respond_with_state(self, exchange: HttpExchange) -> None:
        try:
            parts = json_response(await self._state.document())
        except Exception:
            logger.exception("cannot handle %r", exchange.request.path)
            parts = error_text(_INTERNAL, INTERNAL_ERROR)
        exchange.respond(parts)


def _content_security_policy(text: str) -> str:
    """The policy that lets the page run its own script, use its own style and call this server, and nothing else.

    Script and style are allowed by their hashes, so that markup in the name of a model could not run a script.
    """
    script, style = (_hash(text, tag) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert found is not None, tag
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
