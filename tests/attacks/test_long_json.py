"""Requests with JSON as long as the server allows: they are read in a process of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import psutil
import pytest
import tritonclient.http
from attacks.clients import connected
from attacks.watching import watched
from support.client_inputs import input_of
from support.server import HOST, ServerProcess
from support.threads import in_thread
from support.waiting import until

LONG = 60_000_000
"""Bytes of JSON: just below --http-max-input-size."""


def request(datatype: str, count: int, data: bytes) -> bytes:
    return b'{"inputs":[{"name":"INPUT0","datatype":"%b","shape":[%d],"data":%b}]}' % (datatype.encode(), count, data)


def listed(element: bytes, size: int = LONG) -> tuple[int, bytes]:
    """A list of equal elements with *size* bytes, and their number."""
    count = size // (len(element) + 1)
    return count, b"[" + (element + b",") * (count - 1) + element + b"]"


ATTACKS: dict[str, Callable[[], tuple[str, bytes, int, str]]] = {
    "numbers": lambda: ("bytes", request("UINT8", *listed(b"1", 20_000_000)), 200, ""),
    "a wrong number of numbers": lambda: ("bytes", request("UINT8", 1, listed(b"1")[1]), 500, "Shape does not match"),
    "empty objects": lambda: ("bytes", request("UINT8", *listed(b"{}")), 400, "it has more than 10000 objects"),
    # A third of the length: the copy of a tensor to the guest is not divided, and takes half a millisecond for each MB.
    "brackets in a string": lambda: ("words", request("BYTES", 1, b'["%b"]' % (b"[" * (LONG // 3))), 200, ""),
    "brackets": lambda: ("words", b"[" * LONG, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    "strings": lambda: (
        "words",
        request("BYTES", 1, listed(b'"a"', 20_000_000)[1]),
        400,
        "unexpected number of string elements 2 for inference input 'INPUT0' for model 'words', expecting 1",
    ),
    "inputs": lambda: (
        "words",
        b'{"inputs":%b}' % listed(b"1", 20_000_000)[1],
        400,
        "expected 1 inputs but got 10000000 inputs for model 'words'.",
    ),
    "parameters": lambda: (
        "words",
        b'{"inputs":[],"parameters":{%b}}' % b",".join(b'"%d":1' % index for index in range(500_000)),
        400,
        "it has 500000 parameters; at most 4096 are supported",
    ),
    "no JSON": lambda: ("words", b"x" * LONG, 500, "failed to parse the request JSON buffer"),
}
OFTEN = {"inputs", "parameters"}
"""Those that are no matter of endurance."""


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.endurance) for name in ATTACKS],
)
def test_others_are_served_while_long_json_is_read(server: ServerProcess, name: str) -> None:
    model, body, status, text = ATTACKS[name]()
    with watched(server) as seen:
        reply = server.post(f"/v2/models/{model}/infer", body)
    assert (reply.status, text in reply.body.decode()) == (status, True), reply.body[:500]
    seen.assert_others_served()
    # The body, and in shared memory what is sent to the process and comes back; the response is as long as the body.
    seen.assert_memory(5 * len(body) + (32 << 20))


def test_long_json_gives_the_same_response_as_short_json(server: ServerProcess) -> None:
    values = np.arange(100_000, dtype=np.float32) / 7
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        given = input_of(tritonclient.http, "INPUT0", values, binary_data=False)
        wanted = tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=False)
        result = client.infer("identity", [given], outputs=[wanted], request_id="seven")
    assert result.get_response()["id"] == "seven"
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)


def test_tensors_in_binary_behind_long_json_are_not_sent_to_the_process(server: ServerProcess) -> None:
    padding = b'"x":"%b",' % (b" " * 200_000)
    data = np.arange(1000, dtype=np.float32).tobytes()
    head = (
        b'{%b"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1000],"parameters":{"binary_data_size":4000}}],'
        b'"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}' % padding
    )
    reply = server.post("/v2/models/identity/infer", head + data, {"Inference-Header-Content-Length": str(len(head))})
    assert reply.status == 200
    assert reply.body.endswith(data)


def readers(server: ServerProcess) -> list[psutil.Process]:
    """The processes that read long requests."""
    return [each for each in server.children() if "naiad.frontends.offload" in " ".join(each.cmdline())]


def test_process_that_is_killed_fails_its_request_alone(server: ServerProcess) -> None:
    body = request("UINT8", *listed(b"1", 60_000_000))  # seconds of work: a busy machine shows late that it has begun
    assert server.post("/v2/models/bytes/infer", request("UINT8", *listed(b"1", 300_000))).status == 200
    before = {each: each.cpu_times().user for each in readers(server)}

    def reading() -> list[psutil.Process]:
        return [each for each in readers(server) if each.cpu_times().user > before.get(each, 0) + 0.2]

    with watched(server):
        asking = in_thread(server.post, "/v2/models/bytes/infer", body)
        until(reading, "a process that reads")
        reading()[0].kill()
        reply = asking.result(60)
    assert reply.status == 503
    assert reply.error.startswith("cannot read the request: the process that was reading its 60")
    server.wait_log("which reads long requests, has died (signal SIGKILL); the next one starts when needed")
    assert server.post("/v2/models/bytes/infer", request("UINT8", *listed(b"1", 300_000))).status == 200


def test_requests_of_a_client_that_disconnects_are_not_read(server: ServerProcess) -> None:
    body = request("UINT8", *listed(b"1", 20_000_000))
    head = b"POST /v2/models/bytes/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(3):
        with connected(server.http_port) as connection:
            connection.sendall(head + body)
    # Each of them would take seconds; the one that follows them does not wait for that.
    assert server.post("/v2/models/bytes/infer", request("UINT8", *listed(b"1", 300_000))).status == 200
    assert len(readers(server)) <= len(server.serving())  # each process has one


def test_requests_behind_a_long_one_are_answered_in_order(server: ServerProcess) -> None:
    long = request("UINT8", *listed(b"1", 1_000_000))
    with connected(server.http_port) as connection:
        connection.sendall(
            b"POST /v2/models/bytes/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(long)
            + long
            + b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    first, _, second = received.rpartition(b"HTTP/1.1 200 OK\r\n")
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"model_name":"bytes"' in first
    assert b"Content-Length: 0" in second


def test_long_generate_request_and_response_are_those_of_short_ones(server: ServerProcess) -> None:
    texts = ["a" * (index % 9) for index in range(60_000)]
    reply = server.post("/v2/models/words/generate", {"INPUT0": texts, "id": "x"})
    assert reply.json() == {"model_name": "words", "model_version": "1", "OUTPUT0": texts, "id": "x"}
    streamed = server.post("/v2/models/words/generate_stream", {"INPUT0": texts})
    assert streamed.body.startswith(b'data: {"OUTPUT0":["","a",')
    assert streamed.body.endswith(b'"model_name":"words","model_version":"1"}\n\n')
    refused = server.post("/v2/models/words/generate", b'{"INPUT0":[%b1]}' % (b'"a",' * 60_000))
    assert refused.error == "Unable to parse JSON bytes array: attempt to access JSON non-string as string"


@pytest.mark.parametrize("path", ["/v2/logging", "/v2/repository/models/words/unload", "/v2/trace/setting"])
def test_other_paths_take_no_long_bodies(server: ServerProcess, path: str) -> None:
    reply = server.post(path, b"[" * 1_000_000)
    assert reply.status == 400
    assert reply.error == "request body of 1000000 bytes exceeds the limit of 131072 bytes for this path"
