"""Heads of requests (request line and headers), recognised by their bytes.

A client that keeps its connection sends the same head again and again. Each distinct head is parsed once by httptools
and looked up afterwards: parsing a head of ten lines costs 25 times as much as the look-up. Only heads that say all
there is to know about the body are kept: no transfer coding, no expectation. All others are parsed every time.

Requests to upgrade to another protocol are ignored, as servers may do (RFC 9110, 7.8). `curl --http2` and Java's
HttpClient ask for HTTP/2 with every first request and accept a response in HTTP/1.1.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import httptools
from naiad_stub.memo import Memo

from naiad.frontends.access import PROPAGATED_HEADERS
from naiad.frontends.http1.page_guard import FORBIDDEN, PageGuard
from naiad.frontends.refusals import RefusalLog
from naiad.protocol.inference import NO_HEADERS

_PROPAGATED = frozenset(name.encode() for name in PROPAGATED_HEADERS)
_MAX_HEADS = 1024
_MAX_HEAD_SIZE = 4096  # longer heads are not kept, which bounds the memory of a cache to 4 MiB
_MAX_DIGITS = 19  # Python rejects numbers of more than 4300 digits
_PARSED_EVERY_TIME = (b"transfer-encoding", b"expect")
_VERSIONS = ("1.1", "1.0")
_BAD_REQUEST = 400
_NOT_IMPLEMENTED = 501
_VERSION_NOT_SUPPORTED = 505
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class Headers(dict[bytes, bytes]):
    """Values by lower-case name."""

    __slots__ = ("names", "repeated")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[bytes] = []  # as the client spelled them, in order, repeated ones repeated
        self.repeated: set[bytes] = set()  # the names, in lower case, that are repeated

    def add(self, name: bytes, value: bytes) -> None:
        """Set one header. The last one of a repeated name counts."""
        lower = name.lower()
        if lower in self:
            self.repeated.add(lower)
        self[lower] = value
        self.names.append(name)

    def remove(self, name: bytes) -> None:
        self.pop(name, None)
        self.names = [each for each in self.names if each.lower() != name]


def is_repeated(headers: Mapping[bytes, bytes], name: bytes) -> bool:
    """Whether a request has several headers of a name, which is in lower case."""
    return isinstance(headers, Headers) and name in headers.repeated


def head_problem(version: str, headers: Headers) -> tuple[int, str] | None:
    """Status and message for a request that is rejected because of its version, Host or coding; None if it is not."""
    if version not in _VERSIONS:
        # HTTP/2 has no request lines (RFC 9113, 8.3), and HTTP/0.9 none with a version.
        return _VERSION_NOT_SUPPORTED, f"cannot serve a request of HTTP/{version}: send HTTP/1.1 or HTTP/1.0"
    # A server must reject these (RFC 9112, 3.2): programs before it may have read another Host. HTTP/1.0 needs none.
    if b"host" in headers.repeated:
        return _BAD_REQUEST, "malformed HTTP request: the header Host is repeated; send it once"
    if version == "1.1" and b"host" not in headers:
        return _BAD_REQUEST, "malformed HTTP request: the header Host is missing, which HTTP/1.1 requires"
    coding = headers.get(b"transfer-encoding")
    if coding is not None and (coding.strip(b" \t").lower() != b"chunked" or b"transfer-encoding" in headers.repeated):
        return _NOT_IMPLEMENTED, (
            f"cannot read a body with 'Transfer-Encoding: {coding[:80].decode('latin-1')}': send this header once, as "
            "'chunked'; Content-Encoding says how a body is compressed"
        )
    if coding is not None and version == "1.0" and b"content-length" in headers:
        # Programs of that age know no chunks, and read as much as Content-Length says (RFC 9112, 6.1).
        return _BAD_REQUEST, "malformed HTTP request: HTTP/1.0 with Content-Length and Transfer-Encoding; send one"
    return None


def original_headers(headers: Mapping[bytes, bytes]) -> list[tuple[str, str]]:
    """Names, spelled as the client did, and values of headers."""
    names = headers.names if isinstance(headers, Headers) else headers.keys()
    return [(name.decode("latin-1"), headers[name.lower()].decode("latin-1")) for name in names]


def propagated_headers(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """The headers that requests caused by this one carry on: those of its trace, and its chain of servers."""
    if _PROPAGATED.isdisjoint(headers):
        return NO_HEADERS
    return {name: headers[name.encode()].decode("latin-1") for name in PROPAGATED_HEADERS if name.encode() in headers}


def json_length(headers: Mapping[bytes, bytes]) -> int:
    """Bytes of JSON at the beginning of the body, before its tensors; 0 without Inference-Header-Content-Length."""
    length = headers.get(b"inference-header-content-length", b"")
    return int(length) if length.isdigit() and len(length) <= _MAX_DIGITS else 0


@dataclass(frozen=True, slots=True)
class Head:
    """A parsed head."""

    method: str
    path: bytes  # the path, without query
    headers: Mapping[bytes, bytes]  # values by lower-case name
    body_size: int  # bytes of the body; 0 where only the parser knows it
    keep_alive: bool  # whether the connection may serve another request
    can_chunk: bool  # whether the client knows the chunked transfer coding, as of HTTP/1.1
    query: bytes = b""  # the query, without its question mark


class HeadCache:
    """Heads seen before, shared by the connections of a listener. Those of rejected requests are not kept."""

    __slots__ = ("_guard", "_heads", "_refused")

    def __init__(self, guard: PageGuard | None = None, refused: RefusalLog | None = None) -> None:
        """No heads yet; *guard* refuses requests of foreign web pages, and *refused* logs them."""
        self._heads: Memo[bytes, Head] = Memo(_MAX_HEADS)
        self._guard = guard
        self._refused = refused or RefusalLog()

    def find(self, data: bytes) -> Head | None:
        """The head with these bytes, its empty line included; None if the parser must read the whole request."""
        head = self._heads.get(data)
        if head is None and len(data) <= _MAX_HEAD_SIZE:
            head = _HeadBuilder(self).parse(data)
            if head is not None:
                self._heads[data] = head
        return head

    def problem(
        self, parser: httptools.HttpRequestParser, url: bytes, headers: Headers, *, is_logged: bool = False
    ) -> tuple[int, str] | None:
        """Status and message for the request that *parser* is reading, if its head alone rejects it; else None.

        With *is_logged*, a refusal goes to the log: the reader will respond with it.
        """
        problem = head_problem(parser.get_http_version(), headers)
        guard = self._guard
        if problem is not None or guard is None or guard.is_usual(headers):
            return problem
        refusal = guard.refusal(parser.get_method().decode(), request_path(url), headers)
        if refusal is None:
            return None
        if is_logged:
            self._refused.add(refusal.kind, refusal.text)
        return FORBIDDEN, refusal.text


def parsed_head(parser: httptools.HttpRequestParser, url: bytes, headers: Mapping[bytes, bytes], size: int) -> Head:
    """The head of the request that *parser* is reading, with a body of *size* bytes."""
    return Head(
        parser.get_method().decode(),
        request_path(url),
        headers,
        size,
        parser.should_keep_alive(),
        parser.get_http_version() != "1.0",
        url.partition(b"?")[2],
    )


def strip_upgrade(data: bytes) -> bytes:
    """The beginning of a request without its Upgrade header, after which the parser would not read a body."""
    end = data.find(b"\r\n\r\n")
    return _UPGRADE.sub(b"", data[:end]) + data[end:] if end >= 0 else data


def request_path(target: bytes) -> bytes:
    """The path of a request target, without query. Clients of a proxy send a target with scheme and host."""
    path, _, _ = target.partition(b"?")
    if path.startswith(b"/"):
        return path
    return b"/" + path.partition(b"://")[2].partition(b"/")[2]


class _HeadBuilder:
    """Receives the callbacks of a parser and builds the head from them.

    The head is built in `on_headers_complete`: afterwards the parser does not know any more whether the connection is
    kept.
    """

    def __init__(self, heads: HeadCache) -> None:
        self._heads = heads
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
        if self._heads.problem(self.parser, self.url, self.headers) is not None:
            return  # the reader rejects it
        if length.isdigit() and not any(name in self.headers for name in _PARSED_EVERY_TIME):
            self.head = parsed_head(self.parser, self.url, self.headers, int(length))

    def parse(self, data: bytes) -> Head | None:
        try:
            with contextlib.suppress(httptools.HttpParserUpgrade):
                self.parser.feed_data(data)
        except httptools.HttpParserError:
            return None
        return self.head
