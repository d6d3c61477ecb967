"""Which clients get the page: those of this machine, of one address, or all (`--ui-address`).

The page uses HTTP's port, which usually listens on all addresses, and shows paths, log lines and configurations. So the
decision is made for each request, by the addresses of both ends of its connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.page_guard import PageGuard, PageRules

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")  # of proxies, whose clients may be elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTo:
    """The clients that get the page; by default all."""

    is_local: bool = False  # clients of this machine alone
    address: str = ""  # clients that connect to this address alone; empty for any
    hosts: Sequence[str] | None = None  # names that an operator has listed; None for those of the machine


class PageReach:
    """Decides whether a request gets the page."""

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
