"""Heads of requests (request line and headers), recognised by their bytes.

A client that keeps its connection sends the same head again and again, so each distinct one is parsed once, by
httptools, and looked up after that. Only heads that say all there is to know about the body are kept here: no
transfer coding, no expectation. All others go through the parser every time.

Wishes to go on in another protocol are ignored, as servers may (RFC 9110, 7.8): `curl --http2` and Java's HttpClient
ask for HTTP/2 with every first request, and are content with HTTP/1.1.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import httptools

from naiad.frontends.access import PROPAGATED

_KEPT = 1024
_LONGEST = 4096
_NEED_THE_PARSER = (b"transfer-encoding", b"expect")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class Headers(dict[bytes, bytes]):
    """Values by lower-case name.

    Attributes:
        names: The names as they were spelled, in order; one that was sent twice stands here twice.
    """

    __slots__ = ("names",)

    def __init__(self) -> None:
        super().__init__()
        self.names: list[bytes] = []

    def add(self, name: bytes, value: bytes) -> None:
        """Take one header; of those of one name the last counts."""
        self[name.lower()] = value
        self.names.append(name)


def spelled(headers: Mapping[bytes, bytes]) -> list[tuple[str, str]]:
    """Names, as they were spelled, and values of headers."""
    names = headers.names if isinstance(headers, Headers) else headers.keys()
    return [(name.decode("latin-1"), headers[name.lower()].decode("latin-1")) for name in names]


@dataclass(frozen=True, slots=True)
class Head:
    """A parsed head.

    Attributes:
        method: Such as `GET`.
        path: The path, without query.
        headers: Values by lower-case name.
        body_size: Bytes of the body.
        keep_alive: Whether the connection may serve another request.
        may_chunk: Whether the client knows the chunked transfer coding, as of HTTP/1.1.
    """

    method: str
    path: bytes
    headers: Mapping[bytes, bytes]
    body_size: int
    keep_alive: bool
    may_chunk: bool


class HeadCache:
    """Heads seen before, shared by the connections of a frontend."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}

    def find(self, data: bytes) -> Head | None:
        """The head that *data*, up to and with its empty line, is; None if the parser must see the request itself."""
        head = self._heads.get(data)
        if head is None and len(data) <= _LONGEST:
            head = _parse(data)
            if head is not None:
                if len(self._heads) >= _KEPT:
                    self._heads.clear()
                self._heads[data] = head
        return head


def propagated(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The headers that say to which trace a request belongs."""
    return {name: headers[name.encode()].decode("latin-1") for name in PROPAGATED if name.encode() in headers}


def tensors_at(headers: Mapping[bytes, bytes]) -> int:
    """How many bytes of the body come before those of its tensors (Inference-Header-Content-Length); 0 if not told."""
    length = headers.get(b"inference-header-content-length", b"")
    return int(length) if length.isdigit() else 0


def parsed_head(parser: httptools.HttpRequestParser, url: bytes, headers: Mapping[bytes, bytes], size: int) -> Head:
    """The head that *parser* has read, and whose request it has not left; *size* is that of the body."""
    method = parser.get_method().decode()
    return Head(method, plain_path(url), headers, size, parser.should_keep_alive(), parser.get_http_version() != "1.0")


def without_upgrade(data: bytes) -> bytes:
    """The beginning of a request without its wish for another protocol, after which the parser would read no body."""
    end = data.find(b"\r\n\r\n")
    return _UPGRADE.sub(b"", data[:end]) + data[end:] if end >= 0 else data


def plain_path(url: bytes) -> bytes:
    """The path of a request target, without query; also of one with scheme and host, as clients of a proxy send it."""
    path, _, _ = url.partition(b"?")
    if path.startswith(b"/"):
        return path
    return b"/" + path.partition(b"://")[2].partition(b"/")[2]


class _Collector:
    """Makes a head of what the parser says, while it still knows of a connection whether that goes on."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.headers = Headers()
        self.head: Head | None = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.add(name, value)

    def on_headers_complete(self) -> None:
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and not any(name in self.headers for name in _NEED_THE_PARSER):
            self.head = parsed_head(self.parser, self.url, self.headers, int(length))


def _parse(data: bytes) -> Head | None:
    collector = _Collector()
    try:
        with contextlib.suppress(httptools.HttpParserUpgrade):
            collector.parser.feed_data(data)
    except httptools.HttpParserError:
        return None
    return collector.head
