"""A metrics frontend over the fake engine, on a free port."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from fakes.engine import FakeEngine
from fakes.serving import LoopThread

from naiad.frontends.metrics.server import MetricsFrontend


class ServedMetrics:
    """A running frontend and the ways to ask it."""

    def __init__(self, loop: LoopThread) -> None:
        self.engine = FakeEngine()
        self.loop = loop
        self.collectors: list = []
        self.frontend = MetricsFrontend(
            self.engine, address="127.0.0.1", port=0, collectors=[lambda: [f for c in self.collectors for f in c()]]
        )
        self.port = loop.run(self.frontend.start())

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def ask(self, path: str = "/metrics", method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
        connection = self.connect()
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()


@pytest.fixture
def served(loop: LoopThread) -> Iterator[ServedMetrics]:
    served = ServedMetrics(loop)
    yield served
    loop.run(served.frontend.stop())
