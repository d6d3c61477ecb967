"""Names that clients choose, each of them long and used once: what the server remembers of them is bounded in bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.clients import connected
from attacks.conftest import warm_up
from attacks.watching import attacked_server, harmless
from support.server import ServerProcess

pytestmark = pytest.mark.timeout(600)

_COUNT = 1_000
_LONG = 60_000
"""Bytes of a name: a head may have 65,536."""
_GROWN = 32 << 20


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.endurance)])
def server(request: pytest.FixtureRequest, repository: Path, work: Path) -> Iterator[ServerProcess]:
    options = (f"--processes={request.param}", "--http-header-forward-pattern=x-.*")
    with attacked_server(repository, *options, work=work) as started:
        warm_up(started)
        yield started


def long_name(number: int) -> str:
    return f"{number:08d}" + "n" * (_LONG - 8)


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def paths(number: int) -> bytes:
    return head("GET", f"/{long_name(number)}")


def models(number: int) -> bytes:
    return head("GET", f"/v2/models/{long_name(number)}/ready")


def header_names(number: int) -> bytes:
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["a"]}]})
    return (
        head("POST", "/v2/models/words/infer", f"x-{long_name(number)}: 1", f"Content-Length: {len(body)}")
        + body.encode()
    )


def input_names(number: int) -> bytes:
    entry = {"name": long_name(number), "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}}
    text = json.dumps({"inputs": [entry]}).encode()
    lines = (f"Inference-Header-Content-Length: {len(text)}", f"Content-Length: {len(text) + 1}")
    return head("POST", "/v2/models/bytes/infer", *lines) + text + b"a"


def sequence_ids(number: int) -> bytes:
    entry = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    body = json.dumps({"inputs": [entry], "parameters": {"sequence_id": long_name(number), "sequence_start": True}})
    return head("POST", "/v2/models/words/infer", f"Content-Length: {len(body)}") + body.encode()


@pytest.mark.parametrize(
    "attack",
    [
        paths,
        header_names,
        sequence_ids,
        *(pytest.param(each, marks=pytest.mark.endurance) for each in (models, input_names)),
    ],
)
def test_long_names_that_are_used_once_are_not_kept(server: ServerProcess, attack) -> None:
    with harmless(server, _GROWN):
        for first in range(0, _COUNT, 100):
            with connected(server.http_port) as connection, connection.makefile("rb") as received:
                for number in range(first, first + 100):
                    connection.sendall(attack(number))
                    read_response(received)


def read_response(received) -> None:
    assert received.readline().startswith(b"HTTP/1.1 ")
    length = 0
    while (line := received.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    received.read(length)
