"""Both frontends on one engine without workers, so that each test runs with both protocols."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from fakes.engine import FakeEngine
from fakes.serving import LoopThread

from naiad.frontends.extensions import Extensions
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.kserve_http.server import HttpFrontend


@dataclass
class Both:
    """Two running frontends."""

    engine: FakeEngine
    loop: LoopThread
    http_port: int
    grpc_port: int
    extensions: Extensions

    def http(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a plain HTTP request."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=10)) as connection:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, raw, {key.replace("_", "-"): value for key, value in headers.items()})
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content) if content else None


@pytest.fixture
def serve(loop: LoopThread) -> Iterator[Callable[..., Both]]:
    frontends: list[Any] = []

    def start(extensions: Extensions, *, for_http: Any = None, for_grpc: Any = None) -> Both:
        engine = FakeEngine()
        made = (
            HttpFrontend(engine, address="127.0.0.1", port=0, extensions=extensions, **(for_http or {})),
            GrpcFrontend(engine, address="127.0.0.1", port=0, extensions=extensions, **(for_grpc or {})),
        )
        ports = [loop.run(frontend.start()) for frontend in made]
        frontends.extend(made)
        return Both(engine, loop, *ports, extensions)

    yield start
    for frontend in frontends:
        loop.run(frontend.stop(0))


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The protocol of a test's client."""
    return request.param


@pytest.fixture
def connect(protocol: str) -> Iterator[Callable[[Both], Any]]:
    """Makes a tritonclient for a pair of frontends."""
    with contextlib.ExitStack() as stack:

        def client(both: Both) -> Any:
            if protocol == "http":
                made = tritonclient.http.InferenceServerClient(f"127.0.0.1:{both.http_port}")
            else:
                made = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{both.grpc_port}")
            return stack.enter_context(contextlib.closing(made))

        yield client


@pytest.fixture
def api(protocol: str) -> Any:
    """The module of tritonclient for the protocol."""
    return tritonclient.http if protocol == "http" else tritonclient.grpc
