"""Clients that send wrong passwords, keys and headers to a real server: they are refused, and the log says so."""

from __future__ import annotations

import base64

import grpc
import pytest
from serving.extensions.test_web_pages import ask
from serving.written import write_model
from support.server import ServerProcess, free_ports

SECRET = "open sesame"
_TRIES = 50


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
        f"--processes={max(int(request.param), 1)}",
    )
    with ServerProcess(work / "models", *options, work=work) as server:
        yield server, port


def guesses(served):
    """By name: a request with a secret that returns its status, the status of wrong ones, and what the log says."""
    server, openai = served

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
def test_wrong_secrets_are_refused_and_the_log_says_which_at_a_bounded_rate(served, kind):
    server, _ = served
    ask_with, refused, named = guesses(served)[kind]
    assert [ask_with("wrong") for _ in range(_TRIES)] == [refused] * _TRIES
    assert ask_with(SECRET) not in (refused, 401)
    server.wait_log(f"refused 127.0.0.1: {named} is wrong (")
    assert server.log.count(f"{named} is wrong") < 40, "the log is bounded"


def test_a_request_without_a_secret_is_not_logged(served):
    server, openai = served
    lines = server.log.count(" is wrong (")
    assert ask(server.http_port, "GET", "/ui")[0] == 401
    assert ask(openai, "GET", "/v1/models")[0] == 401
    assert ask(server.http_port, "POST", "/v2/repository/index")[0] == 403
    assert server.log.count(" is wrong (") == lines
