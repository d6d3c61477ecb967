"""The handler of `/ui`, the page, and of the paths below it, on the HTTP port.

/ui                                   the page
/ui/data/<document>/<argument>...     a document that it shows, as JSON (see `state`)
/ui/control/<action>/<model>          POST: load or unload a model, where that is allowed
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from naiad.engine.facade import EngineFacade
from naiad.frontends.http1.later_responses import LaterResponses
from naiad.frontends.http1.messages import HttpExchange, HttpRequest, error_text, json_response, response
from naiad.frontends.http1.page_files import Page, compose_page, page_response
from naiad.frontends.http1.page_guard import PageGuard, PageRules
from naiad.frontends.refusals import RefusalLog
from naiad.protocol.inference import Buffer

_PAGE = "/ui"
_DATA = "/ui/data/"
_CONTROL = "/ui/control/"
_FOUND = 302
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _NOT_ALLOWED = 401, 403, 404, 405
_READ = ("GET", "HEAD")
_CONTROL_HEADER = b"naiad-console"
"""A request to `/ui/control` must have it. Pages of other sites cannot send it: browsers ask the server first, and it
does not consent."""


_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")  # of proxies, whose clients may be elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTo:
    """The clients that get the page; by default all."""

    is_local: bool = False  # clients of this machine alone
    address: str = ""  # clients that connect to this address alone; empty for any
    hosts: Sequence[str] | None = None  # names that an operator has listed; None for those of the machine


class PageReach:
    """Decides whether a request gets the page (`--ui-address`), by the addresses of both ends of its connection.

    The page shows paths, log lines and configurations, and HTTP's port usually listens on all addresses.
    """

    def __init__(self, served_to: ServedTo) -> None:
        self._served_to = served_to
        self._names = PageGuard(PageRules(hosts=served_to.hosts), is_loopback=True)

    def refusal(self, exchange: HttpExchange) -> str:
        """Why a request does not get the page; empty if it does."""
        address = self._served_to.address
        if address:
            return "" if exchange.server_address == address else _explain(exchange.client_address, f"at {address}")
        if not self._served_to.is_local:
            return ""
        headers, here = exchange.request.headers, "to programs of this machine"
        # Packets for loopback addresses may come from other machines (the setting route_localnet), so both ends count.
        if not (_is_loopback(exchange.client_address) and _is_loopback(exchange.server_address)):
            return _explain(exchange.client_address, here)
        if any(name in headers for name in _FORWARDED):
            return _explain("a client behind a proxy", here)
        # As by a server that listens on loopback addresses alone: a name of a web page may resolve to one.
        foreign = self._names.refusal("GET", exchange.request.path, headers)
        return "" if foreign is None else foreign.text


def _explain(client: str, where: str) -> str:
    return (
        f"cannot serve the page to {client}: it is served {where} alone; start the server with --ui-password=FILE, or "
        "with --ui-address=0.0.0.0 to serve it to every client"
    )


def _is_loopback(address: str) -> bool:
    return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


class StateSource(Protocol):
    """Has the documents, as `ConsoleState` makes them."""

    async def document(self, name: str, *arguments: str) -> Any:
        """The document of that name, as JSON values; raises `NaiadError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Who may use the page, and for what."""

    password: str = ""  # the password that every request below `/ui` needs, with any user name; empty for none
    served_to: ServedTo = field(default_factory=ServedTo)
    can_control: bool = False


class Console:
    """Handles requests for the page and its documents."""

    def __init__(
        self,
        source: StateSource,
        engine: EngineFacade,
        settings: ConsoleSettings | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        self._source = source
        self._refusals = refusals or RefusalLog()
        self._engine = engine
        self._settings = settings or ConsoleSettings()
        self._later = LaterResponses()
        self._page = read_page()
        self._reach = PageReach(self._settings.served_to)

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Handle a request for `/`, `/ui` or below; return False for any other path."""
        request = exchange.request
        path = request.path.decode("latin-1")
        if path == "/":
            exchange.respond(response(_FOUND, [], b"", b"Location: %b\r\n" % _PAGE.encode()))
            return True
        if path.rstrip("/") != _PAGE and not path.startswith(f"{_PAGE}/"):
            return False
        if problem := self._reach.refusal(exchange):
            self._refusals.add("the address of /ui", problem)
            exchange.respond(error_text(_FORBIDDEN, problem))
        elif not self._is_authorized(request):
            challenge = b'WWW-Authenticate: Basic realm="naiad", charset="UTF-8"\r\n'
            if b"authorization" in request.headers:  # browsers begin without one
                self._refusals.add_wrong_secret("the password of /ui", exchange.client_address)
            exchange.respond(error_text(_UNAUTHORIZED, "the page needs its password (--ui-password)", extra=challenge))
        elif path.startswith(_CONTROL):
            self._control(exchange, path.removeprefix(_CONTROL).split("/"))
        elif request.method not in _READ:
            exchange.respond(error_text(_NOT_ALLOWED, "Method Not Allowed", extra=b"Allow: GET, HEAD\r\n"))
        elif path.startswith(_DATA):
            name, *arguments = map(unquote, path.removeprefix(_DATA).split("/"))
            self._later.respond(exchange, self._document(name, arguments))
        elif path.rstrip("/") == _PAGE:
            exchange.respond(page_response(self._page, request))
        else:
            exchange.respond(error_text(_NOT_FOUND, f"there is no page {path}; the page is at {_PAGE}"))
        return True

    def _is_authorized(self, request: HttpRequest) -> bool:
        if not self._settings.password:
            return True
        scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
        try:
            password = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
        return scheme.lower() == b"basic" and hmac.compare_digest(password, self._settings.password.encode())

    def _control(self, exchange: HttpExchange, parts: Sequence[str]) -> None:
        request = exchange.request
        if not self._settings.can_control:
            problem = "the page cannot load and unload models; start the server with --ui-control to allow it"
            exchange.respond(error_text(_FORBIDDEN, problem))
        elif request.method != "POST":
            exchange.respond(error_text(_NOT_ALLOWED, "Method Not Allowed", extra=b"Allow: POST\r\n"))
        elif _CONTROL_HEADER not in request.headers:
            exchange.respond(error_text(_FORBIDDEN, "requests to /ui/control need the header 'naiad-console'"))
        elif len(parts) != 2 or parts[0] not in {"load", "unload"}:  # noqa: PLR2004 - an action and a model
            exchange.respond(error_text(_NOT_FOUND, "Not Found"))
        else:
            self._later.respond(exchange, self._change(parts[0], unquote(parts[1])))

    async def _document(self, name: str, arguments: Sequence[str]) -> list[Buffer]:
        return json_response(await self._source.document(name, *arguments))

    async def _change(self, action: str, model: str) -> list[Buffer]:
        if action == "load":
            await self._engine.load(model, {})
        else:
            await self._engine.unload(model)
        return json_response({})


# It has no build step: the people who maintain it write Python, and React or Vue would bring a bundler and hundreds of
# packages for ten pages. uPlot (51 KB, no dependencies) draws the plots.
_STYLES = ("vendor/uPlot.min.css", "style.css")
_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "js/dom.js",
    "js/data.js",
    "js/plots.js",
    "js/markdown.js",
    "js/header.js",
    "js/files.js",
    "js/request.js",
    "js/chat.js",
    "js/graph.js",
    "js/environments.js",
    "js/model.js",
    "js/models.js",
    "js/main.js",
)  # in the order in which they run: a script may use those before it


def read_page() -> Page:
    """The page, from the files of this package."""
    return compose_page("naiad.frontends.console", "page.html", _STYLES, _SCRIPTS)
