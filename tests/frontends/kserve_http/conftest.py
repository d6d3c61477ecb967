from __future__ import annotations

import contextlib

import pytest
from fakes.engine import FakeEngine
from fakes.serving import LoopThread

from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.request_reader import RequestLimits
from naiad.frontends.kserve_http.server import HttpFrontend

from .raw import Client


class Frontend:
    """An HTTP frontend on an engine without workers, with small limits so that tests can exceed them."""

    def __init__(self, loop: LoopThread, extensions: Extensions | None = None) -> None:
        self.loop = loop
        self.engine = FakeEngine()
        self.memory = None if extensions is None else extensions.memory
        self.frontend = HttpFrontend(
            self.engine,
            address="127.0.0.1",
            port=0,
            limits=RequestLimits(header_bytes=16 << 10, body_bytes=32 << 20),
            extensions=extensions,
        )
        self.port = loop.run(self.frontend.start())

    def release(self) -> None:
        """Let the model `held` respond."""
        self.loop.call(self.engine.release)

    def until(self, condition) -> None:
        self.loop.until(lambda: condition(self.engine))


@pytest.fixture
def server(loop):
    frontend = Frontend(loop)
    yield frontend
    loop.run(frontend.frontend.stop(0))


@pytest.fixture
def client(server):
    with contextlib.closing(Client(server.port)) as each:
        yield each
