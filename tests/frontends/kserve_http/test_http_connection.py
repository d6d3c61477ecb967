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


@pytest.mark.parametrize("path", ["/v2/health/live?verbose=1", "http://h:8000/v2/health/live"])
def test_a_path_may_have_a_query_or_come_with_scheme_and_host(client, path):
    """Servers must take the form that clients of a proxy send (RFC 9112, 3.2.2)."""
    client.send(request(path, method="GET"))
    assert client.read().status == 200


def test_connect_is_refused_and_the_connection_is_kept(client):
    client.send(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", request(IDENTITY, infer(1)))
    assert client.read().status == 404
    assert data(client.read()) == [1]


def test_a_client_that_shuts_its_end_still_receives_its_responses(server, client):
    client.send(request(IDENTITY, infer(1)) + request("/v2", method="GET"))
    client.socket.shutdown(socket.SHUT_WR)
    assert data(client.read()) == [1]
    assert client.read().status == 200
    assert client.is_ended_by_server()


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
