"""HTTP/1.1 on a raw socket: valid requests, invalid ones, and that no client can block or fill the server."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading

import pytest

from .raw import Client, chunked, infer, raw, request

IDENTITY = "/v2/models/identity/infer"
HELD = "/v2/models/held/infer"
LATER = "/v2/models/later/infer"


def data(answer) -> list[float]:
    assert answer.status == 200, answer.body
    return answer.json()["outputs"][0]["data"]


def test_twenty_requests_in_one_packet_are_answered_in_their_order(client):
    paths = [IDENTITY, LATER]
    client.send(b"".join(request(paths[n % 2], infer(n, request_id=f"r{n}")) for n in range(20)))
    answers = [client.read().json() for _ in range(20)]
    assert [answer["id"] for answer in answers] == [f"r{n}" for n in range(20)]
    assert [answer["outputs"][0]["data"] for answer in answers] == [[n] for n in range(20)]


def test_connection_serves_one_request_after_another(client):
    for n in range(5):
        client.send(request(IDENTITY, infer(n)))
        assert data(client.read()) == [n]


def test_requests_sent_ahead_of_a_slow_one_wait_for_it(server, client):
    client.send(request(HELD, infer(1)), request("/v2/health/live", method="GET"), request(IDENTITY, infer(3)))
    server.until(lambda engine: engine.held)
    server.release()
    assert data(client.read()) == [1]
    assert client.read().body == b""
    assert data(client.read()) == [3]


def test_thousands_of_small_requests_ahead_of_a_slow_one_are_answered(server, client):
    """Nested calls for each response would exhaust the stack."""
    small = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client.send(request(HELD, infer(1)) + small * 1800)
    server.until(lambda engine: engine.held)
    server.release()
    assert data(client.read()) == [1]
    assert {client.read().status for _ in range(1800)} == {200}


def test_request_sent_ahead_reaches_the_engine_after_the_one_before_is_answered(server, client):
    client.send(request(HELD, infer(1)), request(HELD, infer(2)))
    server.until(lambda engine: engine.held)
    assert len(server.engine.requests) == 1, "the second waits outside of the engine"
    server.release()
    assert [data(client.read()), data(client.read())] == [[1], [2]]
    assert server.engine.cancelled == []


@pytest.mark.parametrize("model", ["identity", "add_sub"])
def test_an_empty_body_is_an_empty_tensor_as_one_without_json(client, model):
    path = f"/v2/models/{model}/infer"
    client.send(request(path, b"", "Inference-Header-Content-Length: 0"))
    expected = client.read()
    client.send(request(path, b""))
    answer = client.read()

    assert (answer.status, answer.body) == (expected.status, expected.body)
    if model == "add_sub":
        assert answer.status == 400
        assert "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs" in answer.json()["error"]
    else:
        assert answer.status == 200
        assert b'"shape":[0]' in answer.body


@pytest.mark.parametrize("size", [1, 7, 4096, 65_536])
def test_chunked_bodies_come_whole_whatever_their_chunks(client, size):
    body = infer(*range(100))
    client.send(chunked(IDENTITY, body, size))
    assert data(client.read()) == list(range(100))
    client.send(request(IDENTITY, infer(5)))
    assert data(client.read()) == [5]


def test_large_body_in_odd_pieces_comes_whole(server, client):
    body = bytes(range(256)) * (20 << 12)
    packet = raw("identity", body)
    position = 0
    for size in (100, 1, 65_535, 65_536, 65_537, 3, 1_000_003, len(packet)):
        client.send(packet[position : position + size])
        position += size
    answer = client.read()
    assert answer.status == 200
    assert answer.body.endswith(body)


def test_large_chunked_body_comes_whole(client):
    body = bytes(range(256)) * (1 << 12)
    client.send(chunked(IDENTITY, body, 100_001, "Inference-Header-Content-Length: 0"))
    assert client.read().body.endswith(body)


@pytest.mark.parametrize("sizes", [[256_000], [256_000, 5_000, 70_000, 65_000, 4_096], [256_000, 256_000, 100]])
def test_small_and_large_bodies_alternate_on_one_connection(client, sizes):
    for n in range(4):
        client.send(
            request(IDENTITY, infer(n)), *[raw("identity", bytes(range(100)) * (size // 100)) for size in sizes]
        )
        assert data(client.read()) == [n]
        for size in sizes:
            assert client.read().body.endswith(bytes(range(100)) * (size // 100))


@pytest.mark.parametrize("first", [b"", chunked(IDENTITY, infer(0), 9)], ids=["at once", "after a chunked request"])
def test_endless_header_is_refused_before_it_fills_the_memory(client, first):
    client.send(first)
    if first:
        client.read()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Endless: ", b"a" * (200 << 10))
    answer = client.read()
    assert answer.status == 431
    assert answer.json() == {"error": "request line and headers exceed the limit of 16384 bytes"}
    assert client.is_ended_by_server()


@pytest.mark.parametrize(
    "packet",
    [
        request(IDENTITY).replace(b"Content-Length: 0", b"Content-Length: 33554433"),
        request(IDENTITY, b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 33554433"),
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % IDENTITY.encode(),
    ],
    ids=["length", "length and expectation", "chunks"],
)
def test_body_over_the_limit_is_refused(client, packet):
    """With `Expect: 100-continue` the rejection comes before the client sends the body."""
    client.send(packet)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if b"chunked" in packet:
            for _ in range(33):
                client.send(b"100000\r\n%b\r\n" % bytes(1 << 20))
    try:
        answer = client.read()
    except ConnectionResetError:  # the response may be lost while the client keeps sending
        assert b"chunked" in packet
        return
    assert answer.status == 413
    assert "exceeds the limit of 33554432 bytes" in answer.json()["error"]
    assert client.is_ended_by_server()


def test_bytes_behind_a_refused_request_are_not_kept(server, client):
    """The connection closes after the response before it. Bytes received meanwhile must not fill the memory."""
    malformed = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" % IDENTITY.encode()
    client.send(request(HELD, infer(1)), malformed)
    server.until(lambda engine: engine.held)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(64):
        client.send(bytes(1 << 20))
    server.release()
    assert data(client.read()) == [1]
    assert client.is_ended_by_server()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_no_further_responses_are_made_for_a_client_that_does_not_read(server, client):
    """Otherwise each request of a few bytes would leave a response of a megabyte in the server's memory."""
    client.send(raw("identity", bytes(30 << 20)))  # more than the kernel keeps for a connection
    server.until(lambda engine: len(engine.requests) == 1)
    client.socket.setblocking(False)
    packet = memoryview(request(IDENTITY, infer(1)) * 20_000)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < len(packet):
            sent += client.socket.send(packet[sent:])
    assert len(server.engine.requests) < 100
    client.socket.setblocking(True)
    client.socket.settimeout(20)
    assert client.read().status == 200
    assert data(client.read()) == [1]


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/models/identity", "/v2/models/unknown", "/v2/health/live", "/v2/health/ready", "/v2/logging"]
)
def test_head_is_answered_like_get_without_a_body(client, path):
    client.send(request(path, method="HEAD"))
    head = client.read(with_body=False)
    client.send(request(path, method="GET"))
    got = client.read()
    assert (head.status, head.headers.items()) == (got.status, got.headers.items())
    assert head.status == (404 if "unknown" in path else 200)


def test_head_is_rejected_where_get_is(client):
    client.send(request("/v2/repository/index", method="HEAD"))
    answer = client.read(with_body=False)
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    client.send(request("/v2/health/live", method="GET"))
    assert client.read().status == 200


def test_options_name_what_is_allowed(client):
    client.send(request("/v2/repository/index", method="OPTIONS"))
    answer = client.read()
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("version", ["1" * 25, "9" * 5000], ids=["25-digits", "5000-digits"])
def test_a_version_beyond_any_integer_is_an_error_of_the_client(client, version):
    client.send(request(f"/v2/models/identity/versions/{version}", method="GET"))
    assert client.read().status in {400, 404}


@pytest.mark.parametrize(
    "first",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(40)),
        b"\x00\x00\x00\x04",
        b"get /v2 ",
        b"GET /v2 HTTP/1.1\n\n",
        b"GET /v2 HTTP/1.1\nHost: localhost\n\r\n",
    ],
    ids=["TLS", "zeros", "small letters", "line feeds alone", "mixed line ends"],
)
def test_bytes_that_cannot_begin_a_request_are_refused_at_once(client, first):
    """A TLS client waits for a response to its first bytes without a time limit."""
    client.send(first)

    answer = client.read()

    assert (answer.status, answer.json()["error"][:24]) == (400, "malformed HTTP request: ")
    assert client.is_ended_by_server()


def test_an_empty_line_before_a_request_does_not_matter(client):
    client.send(b"\r\n")
    client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert client.read().status == 200


def test_http_1_0_is_answered_once(client):
    client.send(request(IDENTITY, infer(1), version="1.0"))
    assert data(client.read()) == [1]
    assert client.is_ended_by_server()


def test_a_connection_of_http_1_0_is_kept_if_the_client_asks_for_it(client):
    for n in range(2):
        client.send(request(IDENTITY, infer(n), "Connection: Keep-Alive", version="1.0"))
        answer = client.read()
        assert answer.headers.get_all("Connection") == ["keep-alive"]
        assert data(answer) == [n]


@pytest.mark.parametrize("how", [{"version": "1.0"}, {"version": "1.1"}], ids=["1.0", "1.1"])
def test_answer_after_which_a_connection_ends_says_so(client, how):
    client.send(request(IDENTITY, infer(1), *(["Connection: close"] if how["version"] == "1.1" else []), **how))
    answer = client.read()
    assert answer.headers.get_all("Connection") == ["close"]
    assert data(answer) == [1]
    assert client.is_ended_by_server()


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")


@pytest.mark.parametrize("size", [1, 100, 50_000], ids=["small", "sliced", "large"])
@pytest.mark.parametrize("expect", [False, True], ids=["at once", "expect"])
def test_an_offer_of_http_2_is_answered_in_http_1_and_the_connection_is_kept(client, size, expect):
    """`curl --http2` and Java's HttpClient do so, and send the body in any case."""
    values = [float(n) for n in range(size)]
    for _ in range(2):
        packet = request(IDENTITY, infer(*values), *UPGRADE, *(["Expect: 100-continue"] if expect else []))
        head, end, body = packet.partition(b"\r\n\r\n")
        client.send(head + end)
        if expect:
            assert client.read().status == 100
        client.send(body)
        assert data(client.read()) == values


def test_client_that_offers_http_2_may_send_chunks(client):
    for n in range(3):
        client.send(chunked(IDENTITY, infer(n), 20, *UPGRADE))
        assert data(client.read()) == [n]


def test_json_may_end_like_strings_of_c_do(client):
    for body in (infer(1) + b"\0", infer(1) + b"\0\0\0"):
        client.send(request(IDENTITY, body))
        assert data(client.read()) == [1]
    client.send(request(IDENTITY, b"\0"))
    answer = client.read()
    assert (answer.status, answer.json()["error"][:46]) == (500, "failed to parse the request JSON buffer: Input")


def test_connect_is_refused_and_the_connection_is_kept(client):
    client.send(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", request(IDENTITY, infer(1)))
    assert client.read().status == 404
    assert data(client.read()) == [1]


def test_connection_close_discards_requests_that_were_sent_ahead(server, client):
    client.send(request(LATER, infer(1), "Connection: close") + request(IDENTITY, infer(2)))
    assert data(client.read()) == [1]
    assert client.is_ended_by_server()
    assert len(server.engine.requests) == 1


def test_a_client_that_shuts_its_end_still_receives_its_responses(server, client):
    client.send(request(IDENTITY, infer(1)) + request("/v2", method="GET"))
    client.socket.shutdown(socket.SHUT_WR)
    assert data(client.read()) == [1]
    assert client.read().status == 200
    assert client.is_ended_by_server()


def test_client_that_leaves_cancels_its_request(server):
    with contextlib.closing(Client(server.port)) as leaving:
        leaving.send(request(HELD, infer(1)), request(IDENTITY, infer(2)))
        server.until(lambda engine: engine.held)
    server.until(lambda engine: engine.cancelled == [1])
    assert len(server.engine.requests) == 1, "what was sent ahead is dropped"


def test_answered_request_is_not_cancelled_when_its_client_leaves(server):
    with contextlib.closing(Client(server.port)) as leaving:
        leaving.send(request(IDENTITY, infer(1)) + request(HELD, infer(2)))
        server.until(lambda engine: engine.held)
        assert data(leaving.read()) == [1]
    server.until(lambda engine: engine.cancelled)
    assert server.engine.cancelled == [2]


def test_stopping_lets_the_request_being_answered_finish(server, client):
    with contextlib.closing(Client(server.port)) as idle:
        idle.send(request("/v2/health/live", method="GET"))
        idle.read()
        client.send(request(HELD, infer(1)))
        server.until(lambda engine: engine.held)
        server.loop.call(lambda: server.loop.loop.create_task(server.frontend.stop(20)))
        assert idle.is_ended_by_server()
        server.release()
        assert data(client.read()) == [1]
        assert client.is_ended_by_server()


def test_an_error_in_the_server_is_answered_and_the_connection_is_kept(server, client, caplog):
    def broken(name: str, version: int = -1) -> bool:
        raise ZeroDivisionError

    server.engine.is_model_ready = broken
    client.send(request("/v2/models/identity/ready", method="GET"))
    answer = client.read()
    assert (answer.status, answer.json()["error"]) == (500, "internal error; the server's log has the details")
    client.send(request(IDENTITY, infer(1)))
    assert data(client.read()) == [1]
    assert "cannot answer GET b'/v2/models/identity/ready'" in caplog.text


def test_a_slow_listing_of_the_repository_delays_no_other_request(server, client):
    listed = threading.Event()

    async def repository_index():
        await asyncio.to_thread(listed.wait, 20)
        return []

    server.engine.repository_index = repository_index
    client.send(request("/v2/repository/index", b""))
    with contextlib.closing(Client(server.port)) as other:
        other.send(request("/v2/health/live", method="GET"))
        assert other.read().status == 200
    listed.set()
    assert client.read().json() == []
