"""Refuses requests that a web page of another site makes a browser send.

A page may send requests to any server that its browser reaches, one on localhost included, and its user does not know.
Two rules keep it from using this one. Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`, so they
meet the first rule only.

1. **Host.** A page reads the responses of a server if its own name resolves to it (DNS rebinding). The browser then
   sends that name as `Host`. So a server that listens on loopback addresses alone serves only the names of its machine,
   and any server may be given a list. A Host that is an address is always served: a page's name is not an address.
2. **Site.** Requests other than GET, HEAD and OPTIONS are refused if they come from a page of another origin. Browsers
   say so by `Sec-Fetch-Site`, which pages cannot set, and to servers without TLS elsewhere by `Origin` alone.

Both are decided with the head, which `heads` parses once: a head that was seen before costs nothing here.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ANY = "*"
FORBIDDEN = 403
_READS = ("GET", "HEAD", "OPTIONS")
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
# Names that no page can have: those of loopback addresses, and what containers call their machine.
_LOCAL_NAMES = frozenset((*_LOOPBACK_NAMES, "host.docker.internal", "host.containers.internal"))
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # the last part of an IPv4 address (WHATWG's URL standard)
_OWN_PATHS = re.compile(rb"/(?:v2|ui)?(?:/.*)?", re.DOTALL)  # not OpenAI's: KServe's, and the page's at `/ui`
_MODEL_PATHS = b"/v1/models/"
_MAX_SHOWN = 200
_MAX_SERVED = 256  # bytes and number of Hosts that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRules:
    """What an operator allows beside the defaults."""

    # Names that are served; `*.example.com` is any name below, `*` any name. None: those of the machine if the
    # listener's addresses are loopback addresses, else any.
    hosts: Sequence[str] | None = None
    origins: Sequence[str] = ()  # origins whose pages may send any request; `*` for any
    openai_origins: Sequence[str] = ()  # may use OpenAI's API but loading and unloading; `*` for any


class PageRefusal(NamedTuple):
    """Why a request is refused."""

    kind: str  # the header that decided, for counts: `Host` or `Origin`
    text: str


class PageGuard:
    """Decides by heads for one listener."""

    def __init__(self, rules: PageRules, *, is_loopback: bool) -> None:
        """A guard with *rules*; *is_loopback* says whether the listener has loopback addresses alone."""
        hosts = rules.hosts
        if hosts is None:
            hosts = () if is_loopback else (ANY,)
        self._serves_any_host = ANY in hosts
        self._hosts = _LOCAL_NAMES.union(hosts, [socket.gethostname().lower()])
        self._domains = (".localhost", *(host[1:] for host in hosts if host.startswith("*.")))
        self._served: set[bytes] = set()  # Hosts seen before
        self._origins = frozenset(rules.origins)
        self._openai_origins = frozenset(rules.openai_origins)

    def is_usual(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether these are headers of a program, not a browser, for a Host that was served before."""
        return (
            (self._serves_any_host or headers.get(b"host") in self._served)
            and b"origin" not in headers
            and b"sec-fetch-site" not in headers
        )

    def refusal(self, method: str, path: bytes, headers: Mapping[bytes, bytes]) -> PageRefusal | None:
        if not self._serves_any_host:
            host = headers.get(b"host", b"")
            if host and not self._is_served(_name_of(host)):  # HTTP/1.0 needs none, and browsers send one
                return PageRefusal(
                    "Host",
                    f"cannot serve the request: this server is not known as '{_shown(host)}' (header Host); use its "
                    "address, or add the name to --http-allowed-hosts",
                )
            if len(host) + len(self._served) < _MAX_SERVED:
                self._served.add(host)
        if method in _READS:
            return None
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is None and origin is None:
            return None
        return self._site_refusal(method, path, site, origin, headers.get(b"host", b""))

    def _is_served(self, name: str) -> bool:
        return (
            name.startswith("[")
            or _NUMBER.fullmatch(name.rpartition(".")[2]) is not None
            or name in self._hosts
            or name.endswith(self._domains)
        )

    def _site_refusal(
        self, method: str, path: bytes, site: bytes | None, origin: bytes | None, host: bytes
    ) -> PageRefusal | None:
        is_openai = _OWN_PATHS.fullmatch(path) is None
        if self._is_allowed("" if origin is None else origin.decode("latin-1").lower(), path, is_openai=is_openai):
            return None
        # Proxies may change the Host of a page's own requests: then the browser's word counts.
        if site == b"same-origin":
            return None
        is_own = origin is None or origin.lower().partition(b"://")[2] == host.lower()
        if is_own and (site is None or site == b"none"):  # none: the user's own doing, such as a bookmark
            return None
        flag = "--openai-allowed-origins" if is_openai else "--http-allowed-origins"
        by = "header Sec-Fetch-Site: " + _shown(site) if origin is None and site else "header Origin"
        page = f"a page of '{_shown(origin)}'" if origin is not None else "a page of another site"
        return PageRefusal(
            "Origin",
            f"cannot accept {method} {_shown(path)} from {page} ({by}): it may change something or run a model; add "
            f"its origin to {flag} if its pages may use this server",
        )

    def _is_allowed(self, origin: str, path: bytes, *, is_openai: bool) -> bool:
        if origin in self._origins or ANY in self._origins:
            return True
        if not is_openai:
            return False
        return origin in self._openai_origins or (ANY in self._openai_origins and not path.startswith(_MODEL_PATHS))


def is_loopback(address: str) -> bool:
    """Whether only programs of this machine can connect to an address that a socket is bound to."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _name_of(host: bytes) -> str:
    """The name or address in a Host, without port, in lower case; an address of IPv6 begins with a bracket."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("[") or text.count(":") > 1:  # some clients forget the brackets
        return f"[{text.lstrip('[')}"
    return text.partition(":")[0].rstrip(".")


def _shown(value: bytes) -> str:
    text = ascii(value[:_MAX_SHOWN].decode("latin-1"))[1:-1]  # without control characters: it goes to the log
    return text if len(value) <= _MAX_SHOWN else text + "..."
