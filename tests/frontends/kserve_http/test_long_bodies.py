"""Bodies longer than one read: they are read into memory that the engine reserves, or into a buffer of the reader."""

from __future__ import annotations

import contextlib
import gzip
import json

import numpy as np
import pytest

from naiad.frontends.http1.request_reader import READ_SIZE

from .raw import Client, request

COUNT = READ_SIZE // 4 + 10_000


def tensor(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)


def binary(model: str, array: np.ndarray, *headers: str, path: str = "", **fields: object) -> bytes:
    data = array.tobytes()
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [array.size], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({**fields, "inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return request(path or f"/v2/models/{model}/infer", text + data, length, *headers)


def ahead(sent: bytes) -> int:
    """How many bytes of a request's body come before the tensor."""
    return sent.partition(b"\r\n\r\n")[2].index(b"}}\x00") + 2


def echoed(client: Client) -> np.ndarray:
    answer = client.read()
    assert answer.status == 200, answer.body[:300]
    return np.frombuffer(answer.body[int(answer.headers["Inference-Header-Content-Length"]) :], np.float32)


def test_long_bodies_are_read_to_the_place_that_the_engine_gives(server, client):
    for number in range(4):
        array = tensor(COUNT)
        sent = binary("identity", array, path="/v2/models/identity/versions/1/infer", id=f"r{number}")
        client.send(sent)
        assert (echoed(client) == array).all()
        version, size, before, memory = server.engine.places[-1]
        body = sent.partition(b"\r\n\r\n")[2]
        assert (version, size, before) == (1, len(body), ahead(sent))
        data = server.engine.requests[-1].inputs[0].data
        assert data.obj is memory(), "it was copied"
    assert len(server.engine.places) == 4


def test_a_place_is_free_once_its_request_is_answered(server, client):
    client.send(binary("held", tensor(COUNT)))
    server.until(lambda engine: engine.held)
    [(_, _, _, memory)] = server.engine.places
    assert memory() is not None
    server.engine.requests.clear()
    server.release()
    assert (echoed(client) == tensor(COUNT)).all()
    server.until(lambda _: memory() is None)


def test_a_client_that_leaves_amid_its_body_leaves_no_place_behind(server):
    with contextlib.closing(Client(server.port)) as client:
        client.send(binary("identity", tensor(COUNT))[:-1])
        server.until(lambda engine: engine.places)
    [(_, _, _, memory)] = server.engine.places
    server.until(lambda _: memory() is None)
    assert not server.engine.requests


def test_requests_of_every_kind_alternate_on_one_connection(server, client):
    """After a long body the reader expects a request like it. Any other request must work as well."""
    short, long, longer = tensor(3, 7), tensor(COUNT, 1), tensor(3 * COUNT, 2)
    kinds = [
        (binary("identity", long), long),
        (binary("identity", short), short),
        (binary("identity", longer, "X-More: " + "m" * 300, id="longer"), longer),
        (binary("identity", long, id="i" * 500), long),
        (binary("later", long), long),  # for which the engine reserves nothing
        (binary("identity", tensor(30_000)), tensor(30_000)),
    ]
    order = [0, 1, 0, 2, 3, 0, 4, 4, 0, 5, 3, 5, 2, 1, 2, 0]
    for number in order:
        client.send(kinds[number][0])
        assert (echoed(client) == kinds[number][1]).all(), number
    client.send(*(kinds[number][0] for number in order))  # and all of them before their responses
    for number in order:
        assert (echoed(client) == kinds[number][1]).all(), number
    assert len(server.engine.places) == 2 * sum(number in {0, 2, 3} for number in order)


@pytest.mark.parametrize("size", [1000, 4096, 65_536, 131_072])
def test_bodies_in_pieces_of_any_size_come_whole(server, client, size):
    array = tensor(COUNT)
    for _ in range(3):
        sent = binary("identity", array)
        for start in range(0, len(sent), size):
            client.send(sent[start : start + size])
        assert (echoed(client) == array).all()
    assert len(server.engine.places) == 3


def test_a_body_without_tensors_is_not_read_into_a_segment(server, client):
    array = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)  # nearly incompressible
    sent = binary("identity", array)
    head, _, body = sent.partition(b"\r\n\r\n")
    packed = gzip.compress(body, 1)
    assert len(packed) > READ_SIZE
    head = head.replace(
        b"Content-Length: %d" % len(body), b"Content-Length: %d\r\nContent-Encoding: gzip" % len(packed)
    )
    client.send(head + b"\r\n\r\n" + packed)
    assert (echoed(client) == array).all()
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [COUNT], "data": tensor(COUNT).tolist()}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    client.send(request("/v2/models/identity/infer", text))
    assert (echoed(client) == tensor(COUNT)).all()
    client.send(request("/v2/health/live", bytes(2 * READ_SIZE), "Inference-Header-Content-Length: 0", method="GET"))
    assert client.read().status == 200
    assert not server.engine.places


def test_a_missing_model_is_named_and_the_connection_is_kept(client):
    """A body of up to 1 MiB is received anyway, so the next request can be found behind it."""
    array = tensor(COUNT)
    client.send(binary("nowhere", array), binary("identity", array))
    answer = client.read()
    assert (answer.status, answer.json()["error"]) == (404, "Request for unknown model: 'nowhere' is not found")
    assert (echoed(client) == array).all()


def test_a_longer_body_for_a_model_that_is_not_there_is_not_read_and_ends_the_connection(client):
    client.send(request("/v2/models/nowhere/infer", bytes(2 << 20)))
    answer = client.read()
    assert (answer.status, answer.json()["error"]) == (404, "Request for unknown model: 'nowhere' is not found")
    assert answer.headers["Connection"] == "close"


def test_json_that_is_said_to_be_longer_than_the_body_is_refused(server, client):
    sent = binary("identity", tensor(COUNT))
    before = ahead(sent)
    client.send(sent.replace(b"Content-Length: %d\r\n\r\n" % before, b"Content-Length: 99999999\r\n\r\n"))
    answer = client.read()
    assert answer.status == 400
    assert answer.json()["error"].endswith("got: 99999999")
    client.send(sent)
    assert (echoed(client) == tensor(COUNT)).all()
