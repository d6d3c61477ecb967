"""Clients that guess passwords, keys and headers of a real server: logged, slowed down, and others are served."""

from __future__ import annotations

import base64
import select
import socket
import threading
import time

import grpc
import pytest
from serving.extensions.test_web_pages import ask
from serving.written import write_model
from support.server import ServerProcess, free_ports

SECRET = "open sesame"
_FREE = 5
_TRIES = 8
"""Wrong ones from one address; the last ones are answered half a second apart."""


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"u:{password}".encode()).decode()}


@pytest.fixture(scope="module", params=["0", "2"], ids=["one-process", "frontends"])
def served(request, tmp_path_factory):
    work = tmp_path_factory.mktemp("secrets")
    write_model(work / "models", "m")
    for name in ("password", "keys"):
        (work / name).write_text(SECRET)
    (port,) = free_ports(1)
    options = (
        "--ui=true",
        f"--ui-password={work / 'password'}",
        f"--openai-port={port}",
        f"--openai-api-keys-file={work / 'keys'}",
        f"--http-restricted-api=model-repository,model-config:admin={SECRET}",
        f"--grpc-restricted-protocol=model-repository:admin={SECRET}",
        f"--frontends={request.param}",
    )
    with ServerProcess(work / "models", *options, work=work) as server:
        yield server, port, int(request.param) or 1


def guesses(served):
    """By name: a request with a secret that returns its status, the status of wrong ones, and what the log says."""
    server, openai, _ = served

    def admin(secret):
        return ask(server.http_port, "POST", "/v2/repository/index", admin=secret)[0]

    def call(secret):
        with grpc.insecure_channel(server.grpc_url) as channel:
            index = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
            try:
                index(b"", metadata=[("triton-grpc-protocol-admin", secret)], timeout=30)
            except grpc.RpcError as error:
                return error.code()
            return 200

    return {
        "ui": (lambda secret: ask(server.http_port, "GET", "/ui", **basic(secret))[0], 401, "the password of /ui"),
        "key": (
            lambda secret: ask(openai, "GET", "/v1/models", Authorization=f"Bearer {secret}")[0],
            401,
            "the API key",
        ),
        "admin": (admin, 403, "header 'admin'"),
        "control": (
            lambda secret: ask(openai, "POST", "/v1/models/m/load", Authorization=f"Bearer {SECRET}", admin=secret)[0],
            403,
            "header 'admin'",
        ),
        "grpc": (call, grpc.StatusCode.UNAVAILABLE, "header 'triton-grpc-protocol-admin'"),
    }


@pytest.mark.parametrize("kind", ["ui", "key", "admin", "control", "grpc"])
def test_guesses_are_slowed_down_and_right_secrets_are_not(served, kind):
    server, _, processes = served
    ask_with, refused, named = guesses(served)[kind]
    statuses: list[object] = []

    def guess():
        statuses.append(ask_with("wrong"))

    # Each process counts, so that with several of them more are answered at once.
    threads = [threading.Thread(target=guess) for _ in range(_TRIES * processes)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    asked = 0
    while any(thread.is_alive() for thread in threads):  # a client of the same address, behind the same proxy
        before = time.monotonic()
        assert ask_with(SECRET) not in (refused, 401), "a right secret is accepted meanwhile"
        assert time.monotonic() - before < 5
        asked += 1
    for thread in threads:
        thread.join()
    assert statuses == [refused] * len(threads)
    assert time.monotonic() - begun > 0.9, "at least two of some process are delayed, by 0.5 s each"
    assert asked > 1
    server.wait_log(f"refused 127.0.0.1: {named} is wrong (")
    assert server.log.count(f"{named} is wrong") < 40, "the log is bounded"


def test_a_request_without_a_secret_is_answered_at_once_and_not_logged(served):
    server, openai, _ = served
    lines = server.log.count(" is wrong (")
    before = time.monotonic()
    for _ in range(30):
        assert ask(server.http_port, "GET", "/ui")[0] == 401
        assert ask(openai, "GET", "/v1/models")[0] == 401
        assert ask(server.http_port, "POST", "/v2/repository/index")[0] == 403
    assert time.monotonic() - before < 10, "90 delayed ones would take 40 s"
    assert server.log.count(" is wrong (") == lines


def test_a_server_stops_at_once_although_refusals_wait(tmp_path):
    write_model(tmp_path / "models", "m")
    (tmp_path / "password").write_text(SECRET)
    options = ("--ui=true", f"--ui-password={tmp_path / 'password'}")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path) as server:
        lines = "".join(f"{name}: {value}\r\n" for name, value in basic("x").items())
        clients = [socket.create_connection(("127.0.0.1", server.http_port), 30) for _ in range(24)]
        for client in clients:
            client.sendall(f"GET /ui HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        server.wait_for(lambda: len(select.select(clients, [], [], 0)[0]) >= _FREE, "the first responses")
        before = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - before < 8, "the last one was due after 9.5 s"
        for client in clients:
            with client:
                assert client.recv(1 << 12).startswith(b"HTTP/1.1 401 ")
