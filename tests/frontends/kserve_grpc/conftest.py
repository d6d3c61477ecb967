"""A gRPC frontend over the fake engine, on a free port, for each test that asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from fakes.engine import FakeEngine
from fakes.serving import LoopThread
from tritonclient.grpc import InferenceServerClient

from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.request_memory import RequestMemory


@dataclass
class Served:
    """A running frontend."""

    engine: FakeEngine
    frontend: GrpcFrontend
    loop: LoopThread
    port: int

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def serve(loop: LoopThread) -> Iterator[Callable[..., Served]]:
    frontends: list[GrpcFrontend] = []
    shared: list[Extensions] = []

    def start(settings: GrpcSettings | None = None, port: int = 0, memory: RequestMemory | None = None) -> Served:
        engine = FakeEngine()
        extensions = None if memory is None else Extensions(memory=memory)
        if extensions is not None:
            shared.append(extensions)
        frontend = GrpcFrontend(engine, address="127.0.0.1", port=port, settings=settings, extensions=extensions)
        bound = loop.run(frontend.start())
        frontends.append(frontend)
        return Served(engine, frontend, loop, bound)

    yield start
    for frontend in frontends:
        loop.run(frontend.stop(0))
    for extensions in shared:
        loop.run(extensions.background.close())


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def client(served: Served) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(served.url) as client:
        yield client
