"""Bytes to requests, without a loop and without sockets."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naiad.frontends.http1.heads import Head, HeadCache, Headers, is_repeated, original_headers
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits, RequestReader
from naiad.frontends.http1.timeouts import Phase
from naiad.frontends.request_memory import RequestMemory

LIMITS = RequestLimits(header_bytes=16 << 10, body_bytes=1 << 20)
RECEIVE_BUFFER = memoryview(bytearray(READ_SIZE))


class Seen(NamedTuple):
    """What a reader reported of one request."""

    method: str
    path: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool


class Recorder:
    """A reader whose callbacks are recorded.

    Attributes:
        requests: The requests it reported.
        rejected: Status and message of what it rejected.
        last: Heads and bodies of requests after which nothing is read.
        stops: Whether the budget stopped the connection, each time that this changed.
        continues: How many clients waited for `100 Continue`.
    """

    def __init__(
        self, heads: HeadCache | None = None, reserve_input=None, memory=None, admit=None, limits=LIMITS
    ) -> None:
        self.requests: list[Seen] = []
        self.bodies: list[object] = []
        self.rejected: list[tuple[int, str]] = []
        self.seen_buffers: list[int] = []
        self.last: list[tuple[Head, bytes]] = []
        self.stops: list[bool] = []
        self.continues = 0
        self.shares = 0
        self.reader = RequestReader(
            self._on_request,
            lambda status, message: self.rejected.append((status, message)),
            self._on_continue,
            self._on_share_used,
            limits=limits,
            heads=heads or HeadCache(),
            receive_buffer=RECEIVE_BUFFER,
            memory=memory or RequestMemory(),
            admit=admit,
            reserve_input=reserve_input,
            on_last=lambda head, body: self.last.append((head, bytes(body))),
            on_stopped=self.stops.append,
        )

    def feed(self, data: bytes) -> None:
        """Receive *data*, in as many reads as the reader's buffers make of it, until the budget stops it."""
        while data and not (self.stops and self.stops[-1]):
            buffer = self.reader.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.reader.buffer_updated(size)
            data = data[size:]

    def _on_request(self, head: Head, body: bytes | memoryview) -> None:
        self.bodies.append(body)
        self.seen_buffers.append(id(getattr(body, "obj", body)))
        self.requests.append(Seen(head.method, head.path, dict(head.headers), bytes(body), head.keep_alive))

    def _on_continue(self) -> None:
        self.continues += 1

    def _on_share_used(self) -> None:
        self.shares += 1


def plain(path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: h", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(path: str, body: bytes, size: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in [*chunks, b""])


LONG = bytes(range(256)) * (READ_SIZE // 128)
KINDS = [
    b"GET /v2/health/live?verbose=1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"\r\nGET http://here:8000/v2 HTTP/1.1\r\nHost: h\r\n\r\n",
    plain("/small", b"body"),
    plain("/old", b"body", "Connection: keep-alive", version="1.0"),
    plain("/last-of-an-old-client", b"", version="1.0"),
    plain("/json", b"{}" + LONG[:9000], "Inference-Header-Content-Length: 2"),
    plain("/long", LONG, "Inference-Header-Content-Length: 100"),
    plain("/longer", LONG * 2 + b"end"),
    plain("/many-headers", b"x", *(f"X-Header-{n}: {'v' * 100}" for n in range(50))),
    plain("/expects", b"y" * 100, "Expect: 100-continue"),
    plain("/expects-long", LONG, "Expect: 100-continue"),
    plain("/offers-http-2", b"z" * 10, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
    chunked("/chunks", b"0123456789" * 20, 7),
    chunked("/long-chunks", LONG, 100_000),
    chunked("/no-chunks", b"", 1),
]
LAST = KINDS[4]
OFFER = KINDS[11]
BY_PARSER = {KINDS[8], KINDS[9], KINDS[10], KINDS[12], KINDS[13], KINDS[14]}


def read_whole(packets: list[bytes]) -> Recorder:
    """What a reader reports of requests received one at a time."""
    recorder = Recorder()
    for packet in packets:
        recorder.feed(packet)
    return recorder


@pytest.mark.parametrize("packet", KINDS, ids=range(len(KINDS)))
def test_each_kind_of_request_is_read(packet):
    recorder = read_whole([packet])

    assert recorder.rejected == []
    assert len(recorder.requests) == 1
    assert recorder.continues == (b"Expect" in packet)


def test_method_path_headers_and_body_are_those_that_were_sent():
    recorder = read_whole([plain("/a/b?c=d", b"body", "X-Name: First", "x-name: Second"), KINDS[1]])

    assert recorder.requests == [
        Seen("POST", b"/a/b", {b"host": b"h", b"content-length": b"4", b"x-name": b"Second"}, b"body", keep_alive=True),
        Seen("GET", b"/v2", {b"host": b"h"}, b"", keep_alive=True),
    ]


def is_readable(packets: list[bytes]) -> bool:
    """Whether the split cannot matter to the result.

    It may in two cases, since the parser also gets what is received in one piece with a request that only it can read.
    It stops behind the head of a request that offers another protocol (status 501); clients make such an offer with the
    first request of a connection. It rejects what follows a request that ends the connection, which is ignored anyway.
    """
    return LAST not in packets[:-1] and not any(
        packet is OFFER and BY_PARSER & set(packets[:index]) for index, packet in enumerate(packets)
    )


sequences = st.lists(st.sampled_from(KINDS), min_size=1, max_size=6).filter(is_readable)


@given(sequences, st.lists(st.integers(0, 1 << 20), max_size=12))
@example(KINDS[:4] * 2, list(range(200)))
@example([KINDS[6], KINDS[6], KINDS[2], KINDS[6]], [])
def test_the_same_bytes_give_the_same_requests_wherever_they_are_split(packets, cuts):
    expected = read_whole(packets)
    data = b"".join(packets)
    bounds = sorted({cut % len(data) for cut in cuts} | {0, len(data)})

    recorder = Recorder()
    for start, end in itertools.pairwise(bounds):
        recorder.feed(data[start:end])

    assert recorder.rejected == []
    assert recorder.requests == expected.requests
    assert recorder.continues == expected.continues


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_malformed_bytes_are_rejected_at_most_once_and_nothing_is_read_behind_them(data, cuts):
    data = b"GET /first HTTP/1.1\r\nHost: h\r\n\r\n" + data
    recorder = Recorder()
    bounds = sorted({cut % len(data) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(bounds):
        recorder.feed(data[start:end])

    assert len(recorder.rejected) <= 1
    if recorder.rejected:
        before = len(recorder.requests)
        recorder.feed(KINDS[0])
        assert len(recorder.requests) == before


def test_a_head_seen_before_is_not_parsed_again(monkeypatch):
    recorder = read_whole([KINDS[2]])
    monkeypatch.setattr("naiad.frontends.http1.heads._HeadBuilder", None)
    recorder.feed(KINDS[2])

    assert len(recorder.requests) == 2


def reservations():
    """Memory that was reserved, and what reserves it."""
    reserved = []

    def reserve(head):
        reserved.append(bytearray(head.body_size))
        return memoryview(reserved[-1])

    return reserved, reserve


def test_a_long_body_is_read_into_the_reserved_memory():
    reserved, reserve = reservations()
    recorder = Recorder(reserve_input=reserve)
    for _ in range(3):
        recorder.feed(KINDS[6])

    assert [body.obj for body in recorder.bodies] == reserved
    assert {seen.body for seen in recorder.requests} == {LONG}


def test_after_a_long_body_the_next_read_ends_where_the_tensors_of_such_a_request_begin():
    recorder = read_whole([KINDS[6]])

    assert len(recorder.reader.get_buffer(-1)) == len(KINDS[6]) - len(LONG) + 100


def test_a_long_body_is_read_a_part_in_each_turn_however_much_has_arrived():
    body = LONG * 20  # 5 MiB
    packet = plain("/long", body)
    recorder = Recorder(limits=RequestLimits(body_bytes=len(body)))
    sent = shares = 0
    while sent < len(packet):
        buffer = recorder.reader.get_buffer(-1)
        assert len(buffer) <= 1 << 20
        size = min(len(buffer), len(packet) - sent)
        buffer[:size] = packet[sent : sent + size]
        sent += size
        recorder.reader.buffer_updated(size)
        if size == 1 << 20 and sent < len(packet):
            shares += 1
            assert recorder.shares == shares, "libuv would read the socket again and again"
    assert shares >= 3
    (seen,) = recorder.requests
    assert seen.body == body


def test_a_released_buffer_is_used_for_the_next_long_body_of_its_size():
    recorder = read_whole([KINDS[6]])
    first = recorder.bodies[0].obj
    recorder.feed(KINDS[6])
    assert recorder.bodies[1].obj is not first, "the first request may still need it"
    recorder.reader.on_body_released(first)
    recorder.feed(KINDS[6])
    assert recorder.bodies[2].obj is not first, "a tensor still refers to it"
    recorder.reader.on_body_released(recorder.bodies.pop().obj)
    again = recorder.seen_buffers[-1]
    recorder.feed(KINDS[6])
    assert id(recorder.bodies[-1].obj) == again
    assert recorder.requests[-1].body == LONG


HOST = b"POST / HTTP/1.1\r\nHost: h\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (HOST + b"X: " + b"x" * 20_000, 431, "request line and headers exceed the limit of 16384 bytes"),
        (HOST + LENGTH % 1048577, 413, "request body of 1048577 bytes exceeds the limit of 1048576 bytes"),
        (chunked("/", bytes(1 << 20) + b"1", 100_000), 413, "request body exceeds the limit of 1048576 bytes"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "malformed HTTP request: "),
        (b"GET / HTTP/1.1\n\n", 400, "malformed HTTP request: "),
        (HOST + LENGTH % -1, 400, "malformed HTTP request: "),
    ],
    ids=["endless header", "long body", "endless chunks", "TLS", "line feeds alone", "negative length"],
)
def test_a_malformed_request_is_rejected_with_its_reason(data, status, message):
    recorder = read_whole([data])

    [(given_status, given_message)] = recorder.rejected
    assert given_status == status
    assert given_message.startswith(message)
    assert recorder.requests == []


def head_of(size: int, *headers: str) -> bytes:
    return "\r\n".join(["POST /big HTTP/1.1", "Host: h", f"Content-Length: {size}", *headers, "", ""]).encode()


def test_an_announced_body_allocates_nothing():
    asked = []
    limits = RequestLimits(body_bytes=1 << 40)
    before = process_memory()
    readers = []
    for _ in range(50):
        recorder = Recorder(reserve_input=asked.append, limits=limits)
        recorder.feed(head_of(1 << 34) + b"beginning")
        readers.append(recorder)

    assert asked == [], "memory of an instance is for clients that send"
    assert process_memory() - before < 20 << 20


def test_a_body_moves_to_reserved_memory_when_an_eighth_of_it_has_arrived():
    body = bytes(range(256)) * 8192
    reserved, reserve = reservations()
    recorder = Recorder(reserve_input=reserve, limits=RequestLimits())
    recorder.feed(head_of(len(body)) + body[: len(body) // 16])
    assert not reserved
    recorder.feed(body[len(body) // 16 :])
    assert reserved[0] == body
    assert recorder.bodies[0].obj is reserved[0]
    recorder.feed(head_of(2 * len(body)))
    recorder.feed(b"b")
    assert len(reserved) == 2, "it has sent as much before"


@pytest.mark.parametrize(
    "data",
    [
        head_of(1 << 30) + b"x" * 500_000,
        head_of(1 << 30, "Expect: 100-continue"),
        head_of(20, "Expect: 100-continue"),
        chunked("/big", LONG, 100_000),
    ],
)
def test_a_request_that_is_not_admitted_is_reported_without_its_body_and_is_the_last(data):
    recorder = Recorder(admit=lambda head: head.path != b"/big")
    recorder.feed(KINDS[6] + data + KINDS[0])

    assert [seen.path for seen in recorder.requests] == [b"/long"]
    assert [(head.path, head.keep_alive, body) for head, body in recorder.last] == [(b"/big", False, b"")]
    assert recorder.continues == 0
    assert recorder.rejected == []


@pytest.mark.parametrize("data", [head_of(395_000) + LONG * 3, chunked("/", LONG * 3, 50_000)])
def test_the_budget_stops_and_then_refuses_a_body(data):
    memory = RequestMemory(limit=424_000)
    other = memory.budget.open(Recorder(memory=memory))  # its body is complete
    other.add(27_000)
    other.complete()
    recorder = Recorder(memory=memory)
    recorder.feed(data)
    assert recorder.stops == [True]
    assert memory.budget.in_use >= memory.budget.soft_limit
    while memory.budget.on_tick():
        pass

    [(status, message)] = recorder.rejected
    assert status == 503
    assert message.startswith("cannot receive the request: requests in flight use all of the 424000 bytes")
    assert recorder.stops == [True, False], "what follows is discarded"
    assert memory.budget.in_use == 27_000


def test_a_body_longer_than_the_budget_is_rejected_at_once():
    recorder = Recorder(memory=RequestMemory(limit=400_000))
    recorder.feed(head_of(400_001))

    text = (
        "request body of 400001 bytes exceeds the 400000 bytes that all requests in flight may use together; "
        "send smaller requests, or set --memory-limit-requests"
    )
    assert recorder.rejected == [(413, text)]


def test_a_stopped_body_continues_when_a_request_is_answered():
    memory = RequestMemory(limit=900_000)
    first, second = Recorder(memory=memory), Recorder(memory=memory)
    first.feed(KINDS[7])
    assert memory.budget.in_use == len(LONG) * 2 + 3
    second.feed(head_of(400_000))
    for _ in range(20):
        second.feed(b"x" * 20_000)
    assert second.stops == [True]
    assert memory.budget.soft_limit <= memory.budget.in_use <= memory.budget.limit
    first.reader.on_body_released(first.bodies[0].obj)
    assert second.stops == [True, False]
    missing = 400_000 - second.reader._long_body.received
    second.feed(b"x" * missing)
    assert second.requests[0].body == b"x" * 400_000
    second.reader.release()
    assert memory.budget.in_use == 0


def test_chunks_are_joined_as_they_arrive():
    body = bytes(range(256)) * 1000
    recorder = read_whole([chunked("/", body, 2)[:-5]])
    assert len(recorder.reader._chunks) < 20_000
    recorder.feed(b"0\r\n\r\n")

    assert recorder.requests[0].body == body


def process_memory() -> int:
    return psutil.Process().memory_info().rss


def test_a_stopped_reader_ignores_what_it_receives():
    recorder = Recorder()
    recorder.reader.stop()
    recorder.feed(KINDS[2])

    assert recorder.requests == recorder.rejected == []


NO_HOST = "malformed HTTP request: the header Host is missing, which HTTP/1.1 requires"
TWO_HOSTS = "malformed HTTP request: the header Host is repeated; send it once"


@pytest.mark.parametrize(
    ("head", "status", "message"),
    [
        (b"GET / HTTP/1.1", 400, NO_HOST),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked", 400, NO_HOST),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: a", 400, TWO_HOSTS),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b", 400, TWO_HOSTS),
        (b"GET / HTTP/2.0\r\nHost: a", 505, "cannot serve a request of HTTP/2.0: send HTTP/1.1 or HTTP/1.0"),
        (b"PRI * HTTP/2.0", 505, "cannot serve HTTP/2 at this port: send HTTP/1.1, or use gRPC's port"),
        (b"GET / HTTP/0.9\r\nHost: a", 505, "cannot serve a request of HTTP/0.9: send HTTP/1.1 or HTTP/1.0"),
    ],
)
def test_heads_that_programs_may_read_differently_are_rejected(head, status, message):
    recorder = read_whole([plain("/first"), head + b"\r\n\r\n", plain("/third")])

    assert [request.path for request in recorder.requests] == [b"/first"]
    assert recorder.rejected == [(status, message)]


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        (b"Transfer-Encoding: gzip, chunked", "gzip, chunked"),
        (b"Transfer-Encoding: identity, chunked", "identity, chunked"),
        (b"transfer-encoding: xchunked, chunked", "xchunked, chunked"),
        (b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "chunked"),
    ],
)
def test_a_body_in_another_transfer_coding_is_not_taken_for_its_content(headers, named):
    recorder = read_whole([plain("/first"), b"POST / HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n2\r\nab\r\n0\r\n\r\n" % headers])

    assert [request.path for request in recorder.requests] == [b"/first"]
    message = (
        f"cannot read a body with 'Transfer-Encoding: {named}': send this header once, as 'chunked'; "
        "Content-Encoding says how a body is compressed"
    )
    assert recorder.rejected == [(501, message)]


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" CHUNKED"])
def test_chunked_is_read_in_any_case(coding):
    recorder = read_whole([b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:%b\r\n\r\n2\r\nab\r\n0\r\n\r\n" % coding])

    assert [bytes(request.body) for request in recorder.requests] == [b"ab"]
    assert recorder.rejected == []


CHUNKS = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize("body", [b"", b"ab", LONG], ids=["empty", "short", "long"])
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1\r\nHost: h\r\ncontent-LENGTH: 3\r\n" + CHUNKS,
        b"HTTP/1.1\r\nHost: h\r\n" + CHUNKS + b"\r\nX: y\r\nContent-Length: 1000000",
        b"HTTP/1.0\r\nConnection: keep-alive\r\n" + CHUNKS,
    ],
    ids=["length first", "chunks first", "1.0"],
)
def test_of_a_body_with_chunks_and_a_length_the_chunks_count_and_nothing_behind_it_is_read(head, body):
    """A program before this server may have sent on what its length says: what follows may be another's request."""
    framed = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    for step in (1 << 20, 1000, 7):
        if step == 7 and body is LONG:
            continue  # takes long, and shows nothing more
        recorder = Recorder()
        data = plain("/first") + b"POST /last %b\r\n\r\n%b" % (head, framed) + plain("/smuggled")
        for start in range(0, len(data), step):
            recorder.feed(data[start : start + step])

        assert [seen.path for seen in recorder.requests] == [b"/first"]
        [(last, received)] = recorder.last
        assert (last.path, last.keep_alive) == (b"/last", False)
        assert received == body
        assert b"content-length" not in last.headers
        assert b"content-length" not in [name.lower() for name, _ in original_headers(last.headers)]
        assert recorder.rejected == []


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n", "Invalid character in Content-Length"),
        (b"HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 2\r\n", "Duplicate Content-Length"),
        (b"HTTP/1.0\r\nContent-Length: 2\r\n", "HTTP/1.0 with Content-Length and Transfer-Encoding; send one"),
    ],
)
def test_a_chunked_body_with_a_doubtful_length_is_rejected(head, message):
    recorder = read_whole([plain("/first"), b"POST / " + head + CHUNKS + b"\r\n\r\n0\r\n\r\n", plain("/third")])

    assert [request.path for request in recorder.requests] == [b"/first"]
    assert recorder.last == []
    assert recorder.rejected == [(400, f"malformed HTTP request: {message}")]


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.0", b"GET / HTTP/1.0\r\nConnection: keep-alive", b"GET / HTTP/1.0\r\nHost: a", b"GET / HTTP/1.1\r\nHost:"],
    ids=["curl --http1.0", "ab -k", "with Host", "empty Host"],
)  # fmt: skip
def test_heads_of_old_clients_are_read(head):
    recorder = read_whole([head + b"\r\n\r\n"])

    assert (len(recorder.requests), recorder.rejected) == (1, [])


def test_repeated_headers_are_known():
    headers = Headers()
    for name in (b"A", b"b", b"a"):
        headers.add(name, b"")
    assert [is_repeated(headers, name) for name in (b"a", b"b", b"c")] == [True, False, False]
    assert not is_repeated({b"a": b""}, b"a")


TRAILED = b"POST / HTTP/1.1\r\nHost: h\r\nX-User: alice\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"


def test_a_trailer_replaces_no_header():
    recorder = read_whole([TRAILED + b"X-User: mallory\r\nInference-Header-Content-Length: 1\r\n\r\n", KINDS[0]])

    first, second = recorder.requests
    assert (first.headers[b"x-user"], first.body) == (b"alice", b"ab")
    assert b"inference-header-content-length" not in first.headers
    assert second.path == b"/v2/health/live"


@pytest.mark.parametrize(
    "begin", [TRAILED + b"X-Long: ", TRAILED[: -len(b"0\r\n")] + b"2;name="], ids=["trailer", "chunk extension"]
)
def test_a_trailer_or_chunk_extension_without_end_is_refused(begin):
    recorder = read_whole([begin])
    sent = 0
    while not recorder.rejected and sent < 1 << 20:
        recorder.feed(b"x" * 8192)
        sent += 8192

    assert [status for status, _ in recorder.rejected] == [431]
    assert sent < 1 << 18


def test_a_body_in_many_small_chunks_is_read():
    recorder = read_whole([chunked("/small-chunks", b"ab" * 100_000, 2)])

    assert recorder.rejected == []
    assert len(recorder.requests[0].body) == 200_000


def test_a_client_of_http_1_0_gets_no_interim_response():
    recorder = read_whole([plain("/old", b"body", "Expect: 100-continue", version="1.0")])

    assert recorder.continues == 0
    assert recorder.requests[0].body == b"body"


# -- states that time limits depend on, and limits to the byte


def counted_head(limit: int) -> bytes:
    """A head whose target and fields count *limit* bytes: each field four more than its name and value."""
    start = b"GET / HTTP/1.1\r\nHost: h\r\nX: "
    counted = len(b"/") + len(b"Hosth") + 4 + len(b"X") + 4
    return start + b"x" * (limit - counted) + b"\r\n\r\n"


@pytest.mark.parametrize(("more", "is_rejected"), [(0, False), (1, True)])
def test_a_head_may_have_as_many_bytes_as_the_limit(more, is_rejected):
    recorder = read_whole([counted_head(LIMITS.header_bytes + more)])
    assert [status for status, _ in recorder.rejected] == ([431] if is_rejected else [])
    assert len(recorder.requests) == (not is_rejected)


def test_a_header_without_end_is_rejected_behind_empty_lines_too():
    """They bring it to the parser, which reports no header that is not complete."""
    recorder = read_whole([b"\n\nGET / HTTP/1.1\r\nX: "])
    assert recorder.reader.phase is Phase.HEADER
    received = recorder.reader.received
    recorder.feed(b"x" * 1000)
    assert recorder.reader.received == received + 1000
    recorder.feed(b"x" * (LIMITS.header_bytes + 2 * READ_SIZE))
    assert [status for status, _ in recorder.rejected] == [431]


def test_empty_lines_alone_are_no_request():
    recorder = read_whole([b"\n\n\n"])
    assert recorder.rejected == []
    assert recorder.requests == []
    recorder.feed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert len(recorder.requests) == 1


def test_a_rejected_connection_expects_nothing():
    recorder = read_whole([b"GET / HTTP/1.1\r\nX: "])
    assert recorder.reader.phase is Phase.HEADER
    recorder.feed(b"x" * LIMITS.header_bytes)
    assert [status for status, _ in recorder.rejected] == [431]
    assert (recorder.reader.phase, recorder.reader.received) == (Phase.IDLE, 0)


def test_reading_on_is_reported_once():
    recorder = read_whole([plain("/long", LONG)[:-10]])
    assert recorder.reader.phase is Phase.BODY
    recorder.reader._stop_receiving()  # as where the budget has no room
    recorder.reader._stop_receiving()
    assert recorder.reader.phase is Phase.WORKING
    recorder.reader.resume_receiving()
    recorder.reader.resume_receiving()
    assert recorder.stops == [True, False]
    assert recorder.reader.phase is Phase.BODY
    recorder.reader.release()
