"""Which requests a connection survives and which end it: HTTP/1.1 of clients and proxies over plain sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket

import pytest
from conformance.running import MODELS
from support.server import ServerProcess

INFER = "/v2/models/add_sub/infer"
BODY = json.dumps(
    {"inputs": [{"name": n, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for n in ("INPUT0", "INPUT1")]}
).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    work = tmp_path_factory.mktemp("connections")
    repository = work / "repository"
    repository.mkdir()
    for model in ("add_sub", "identity_fp32"):
        (repository / model).symlink_to(MODELS / model)
    with ServerProcess(repository, work=work) as running:
        yield running


class Client:
    """A plain socket that sends given bytes and reads whole responses."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.incoming = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        status = int(self.incoming.readline().split()[1])
        headers = http.client.parse_headers(self.incoming)
        return status, self.incoming.read(int(headers.get("Content-Length", "0")))

    def is_ended_by_server(self) -> bool:
        try:
            return self.incoming.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.incoming.close()
        self.socket.close()


@pytest.fixture
def client(server):
    with contextlib.closing(Client(server.http_port)) as each:
        yield each


def request(
    path: str = INFER, *, body: bytes = BODY, method: str = "POST", version: str = "1.1", headers: str = ""
) -> bytes:
    return (
        f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
        + body
    )


def sums(answer: tuple[int, bytes]) -> list[float]:
    status, body = answer
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"]


def test_pipelined_requests_are_answered_in_their_order(client):
    """The second response is ready at once, the first only after the model. In the wrong order a client would mix them up."""
    client.send(request() + request("/v2/nothing") + request())
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]
    assert client.read_answer()[0] == 404
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("wrong", [b"{}", b"no JSON", BODY.replace(b"FP32", b"INT8")], ids=["empty", "no JSON", "type"])
def test_a_connection_is_kept_after_a_refused_request(client, wrong):
    client.send(request(body=wrong))
    assert client.read_answer()[0] in {400, 500}
    client.send(request())
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]


def test_request_may_arrive_byte_by_byte(client):
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request():
        client.send(bytes([byte]))
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]


def test_a_client_that_waits_for_100_continue_receives_it(client):
    """curl asks before it sends a large body, and waits a second for the response."""
    head, _, body = request(headers="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert client.incoming.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert client.incoming.readline() == b"\r\n"
    client.send(body)
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("how", [{"version": "1.0"}, {"headers": "Connection: close\r\n"}], ids=["1.0", "close"])
def test_connection_ends_after_its_answer_where_the_client_says_so(client, how):
    client.send(request(**how))
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]
    assert client.is_ended_by_server()


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"\x16\x03\x01 this is TLS\r\n\r\n", {400}),
        (request(headers=f"X: {'a' * 200_000}\r\n"), {431, 400}),
        (request(headers="Content-Length: 3\r\n"), {400}),
        (request(headers="Transfer-Encoding: chunked\r\n"), {400}),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 404}),
    ],
    ids=["TLS", "a huge header", "two lengths", "a length and chunks", "a chunk of no length"],
)
def test_malformed_request_is_refused_and_its_connection_ended(server, client, sent, statuses):
    """The beginning of the next request is unknown (two lengths: request smuggling), so the connection ends."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.send(sent)
    assert client.read_answer()[0] in statuses
    assert client.is_ended_by_server()
    assert server.get("/v2/health/live").status == 200


def test_body_framed_by_the_client_is_read_by_its_chunks_and_ends_its_connection(client):
    """What `requests` sends for bytes that are chunks already, with the header Transfer-Encoding."""
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    smuggled = request("/v2/health/live", method="GET", body=b"")
    client.send(request(body=framed, headers="Transfer-Encoding: chunked\r\n") + smuggled)
    assert sums(client.read_answer()) == [2.0, 4.0, 6.0, 8.0]
    assert client.is_ended_by_server()


def test_a_client_that_disconnects_within_its_body_affects_no_other(server):
    for _ in range(20):
        with contextlib.closing(Client(server.http_port)) as leaving:
            leaving.send(request()[:-10])
    assert server.post(INFER, BODY).status == 200


def test_a_client_that_disconnects_before_its_response_affects_no_other(server):
    for _ in range(20):
        with contextlib.closing(Client(server.http_port)) as leaving:
            leaving.send(request())
    assert server.post(INFER, BODY).status == 200
    assert server.get("/v2/models/add_sub/ready").status == 200


def test_query_is_no_part_of_the_path(client):
    client.send(request("/v2/health/live?verbose=1", method="GET", body=b""))
    assert client.read_answer() == (200, b"")


def test_path_may_come_with_scheme_and_host(client):
    """Servers must take the form that clients of a proxy send (RFC 9112, 3.2.2)."""
    client.send(request("http://h:8000/v2/health/live", method="GET", body=b""))
    assert client.read_answer() == (200, b"")


def test_slow_reader_gets_its_own_answer_while_others_are_served(server):
    """The response is written from the guest's memory, which must not be freed before the last byte is sent."""
    size = 32 << 20  # more than the kernel keeps for a connection

    def raw(fill: bytes) -> bytes:
        path, header = "/v2/models/identity_fp32/infer", "Inference-Header-Content-Length: 0\r\n"
        return request(path, body=fill * size, headers=header)

    with contextlib.closing(Client(server.http_port)) as slow:
        slow.send(raw(b"\x01"))
        slow.incoming.peek(1)  # its response has begun, and most of it does not fit into the socket's buffers
        with contextlib.closing(Client(server.http_port)) as quick:
            for fill in (b"\x02", b"\x03", b"\x04"):
                quick.send(raw(fill))
                assert quick.read_answer()[1][-size:] == fill * size
        status, body = slow.read_answer()
    assert status == 200
    assert body[-size:] == b"\x01" * size
