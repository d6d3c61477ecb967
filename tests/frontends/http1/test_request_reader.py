"""Bytes to requests, without a loop and without sockets."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naiad.frontends.http1.heads import Head, HeadCache
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits, RequestReader

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
        continues: How many clients waited for `100 Continue`.
    """

    def __init__(self, heads: HeadCache | None = None, reserve_input=None) -> None:
        self.requests: list[Seen] = []
        self.bodies: list[object] = []
        self.rejected: list[tuple[int, str]] = []
        self.continues = 0
        self.reader = RequestReader(
            self._on_request,
            lambda status, message: self.rejected.append((status, message)),
            self._on_continue,
            limits=LIMITS,
            heads=heads or HeadCache(),
            receive_buffer=RECEIVE_BUFFER,
            reserve_input=reserve_input,
        )

    def feed(self, data: bytes) -> None:
        """Receive *data*, in as many reads as the reader's buffers make of it."""
        while data:
            buffer = self.reader.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.reader.buffer_updated(size)
            data = data[size:]

    def _on_request(self, head: Head, body: bytes | memoryview) -> None:
        self.bodies.append(body)
        self.requests.append(Seen(head.method, head.path, dict(head.headers), bytes(body), head.keep_alive))

    def _on_continue(self) -> None:
        self.continues += 1


def plain(path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(path: str, body: bytes, size: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in [*chunks, b""])


LONG = bytes(range(256)) * (READ_SIZE // 128)
KINDS = [
    b"GET /v2/health/live?verbose=1 HTTP/1.1\r\nHost: here\r\n\r\n",
    b"\r\nGET http://here:8000/v2 HTTP/1.1\r\n\r\n",
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
        Seen("POST", b"/a/b", {b"content-length": b"4", b"x-name": b"Second"}, b"body", keep_alive=True),
        Seen("GET", b"/v2", {}, b"", keep_alive=True),
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
    data = b"GET /first HTTP/1.1\r\n\r\n" + data
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
    recorder = Recorder()
    recorder.feed(KINDS[2])
    monkeypatch.setattr("naiad.frontends.http1.heads._parse", None)
    recorder.feed(KINDS[2])

    assert len(recorder.requests) == 2


def test_a_long_body_is_read_into_the_reserved_memory():
    reserved = []

    def reserve(head):
        reserved.append(bytearray(head.body_size))
        return memoryview(reserved[-1])

    recorder = Recorder(reserve_input=reserve)
    for _ in range(3):
        recorder.feed(KINDS[6])

    assert [body.obj for body in recorder.bodies] == reserved
    assert {seen.body for seen in recorder.requests} == {LONG}


def test_after_a_long_body_the_next_read_ends_where_the_tensors_of_such_a_request_begin():
    recorder = Recorder()
    recorder.feed(KINDS[6])

    assert len(recorder.reader.get_buffer(-1)) == len(KINDS[6]) - len(LONG) + 100


def test_a_released_buffer_is_used_for_the_next_long_body_of_its_size():
    recorder = Recorder()
    recorder.feed(KINDS[6])
    first = recorder.bodies[0].obj
    recorder.feed(KINDS[6])
    assert recorder.bodies[1].obj is not first, "the first request may still need it"
    recorder.reader.reuse_buffer(first)
    recorder.feed(KINDS[7])
    assert recorder.bodies[2].obj is not first, "of another size"
    recorder.reader.reuse_buffer(first)
    recorder.feed(KINDS[6])
    assert recorder.bodies[3].obj is first


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, 431, "request line and headers exceed the limit of 16384 bytes"),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n",
            413,
            "request body of 1048577 bytes exceeds the limit of 1048576 bytes",
        ),
        (chunked("/", bytes(1 << 20) + b"1", 100_000), 413, "request body exceeds the limit of 1048576 bytes"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "malformed HTTP request: "),
        (b"GET / HTTP/1.1\n\n", 400, "malformed HTTP request: "),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "malformed HTTP request: "),
    ],
    ids=["endless header", "long body", "endless chunks", "TLS", "line feeds alone", "negative length"],
)
def test_what_cannot_be_read_is_rejected_with_its_reason(data, status, message):
    recorder = Recorder()
    recorder.feed(data)

    [(given_status, given_message)] = recorder.rejected
    assert given_status == status
    assert given_message.startswith(message)
    assert recorder.requests == []


def test_a_stopped_reader_ignores_what_it_receives():
    recorder = Recorder()
    recorder.reader.stop()
    recorder.feed(KINDS[2])

    assert recorder.requests == recorder.rejected == []
