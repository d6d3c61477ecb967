"""The handler of the page of the API and of its document, on the HTTP port.

/docs, /v2/docs                      the page; it reads the document below, with the headers that its user enters
/openapi.json, /v2/openapi.json      the document, made from the models that are loaded now

The page says nothing of this server, so it needs no secret. The document names models and their tensors: where these
may be read with a header only (`--http-restricted-api`), it needs the same headers.

The page is our own (7 KB compressed): Swagger UI 5, RapiDoc and Redoc have 0.9 to 1.9 MB, and Swagger UI needs
`unsafe-inline` for its styles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.http1.later_responses import LaterResponses
from naiad.frontends.http1.messages import HttpExchange, error_text, response
from naiad.frontends.http1.page_files import Page, compose_page, page_response
from naiad.frontends.kserve_http.restricted import guards_of, http_denial
from naiad.frontends.refusals import RefusalLog
from naiad.protocol.inference import Buffer

PAGE_PATHS = frozenset({b"/docs", b"/v2/docs", b"/docs/", b"/v2/docs/"})
DOCUMENT_PATHS = frozenset({b"/openapi.json", b"/v2/openapi.json"})
_NAMED = (Api.METADATA, Api.MODEL_REPOSITORY)  # what the document says, by the APIs that say the same
_READ = ("GET", "HEAD")
_OK, _FORBIDDEN, _NOT_ALLOWED = 200, 403, 405
_DOCUMENT_HEADERS = b"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"


class ApiPage:
    """Handles requests for the page and its document."""

    def __init__(
        self, read: Callable[[], Awaitable[bytes]], restrictions: Restrictions, refusals: RefusalLog | None = None
    ) -> None:
        self._read = read
        guards = guards_of(restrictions)
        self._guards = sorted({guards[api] for api in _NAMED if api in guards})
        self._refusals = refusals or RefusalLog()
        self._later = LaterResponses()

    @cached_property
    def _page(self) -> Page:
        return compose_page("naiad.frontends.api_page", "page.html", ["style.css"], ["page.js"])

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Handle a request for the page or its document; return False for any other path."""
        request = exchange.request
        is_page = request.path in PAGE_PATHS
        if not is_page and request.path not in DOCUMENT_PATHS:
            return False
        if request.method not in _READ:
            exchange.respond(error_text(_NOT_ALLOWED, "Method Not Allowed", extra=b"Allow: GET, HEAD\r\n"))
        elif is_page:
            exchange.respond(page_response(self._page, request))
        elif denial := next(filter(None, (http_denial(guard, request.headers) for guard in self._guards)), None):
            self._refusals.add_wrong_secret(denial.wrong_secret, exchange.client_address)
            exchange.respond(error_text(_FORBIDDEN, denial.text))
        else:
            self._later.respond(exchange, self._document())
        return True

    async def _document(self) -> list[Buffer]:
        return response(_OK, [await self._read()], extra=_DOCUMENT_HEADERS)
