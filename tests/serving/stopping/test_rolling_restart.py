"""Servers that share ports are replaced one after the other, and no client loses a request."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from serving.repositories import repository
from serving.stopping.clients import Clients, send_over_grpc, send_over_http
from support.server import HOST, ServerProcess, free_ports
from support.waiting import until


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return repository(tmp_path / "models", ["identity"])


class Ports:
    """Starts servers that share their ports."""

    def __init__(self, models: Path, work: Path, *options: str) -> None:
        self.http, self.grpc, self.openai = free_ports(3)
        self._models, self._work, self._options = models, work, options
        self._count = itertools.count()

    @contextlib.contextmanager
    def serve(self) -> Iterator[ServerProcess]:
        server = ServerProcess(
            self._models,
            f"--http-port={self.http}",
            f"--grpc-port={self.grpc}",
            f"--openai-port={self.openai}",
            "--reuse-http-port=true",
            "--reuse-grpc-port=true",
            *self._options,
            work=self._work / f"server-{next(self._count)}",
            wait="",
        )
        with server:
            server.wait_log("Started Metrics Service")
            yield server


def replace_under_load(ports: Ports, send: Callable[[Clients, int], None], port: int, requests: int) -> None:
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(contextlib.ExitStack())
        old.enter_context(ports.serve())
        load = Clients(send, port, 4)
        stack.callback(load.stop)
        while load.answered < requests and not load.failures:
            enough = load.answered + requests // 5
            new = stack.enter_context(contextlib.ExitStack())
            new.enter_context(ports.serve())
            old.close()
            until(partial(load.has_answered, enough), "requests to be answered")
            old = new
        load.stop()
    assert load.failures == []
    assert load.answered >= requests


@pytest.mark.parametrize(
    ("send", "port", "requests", "drain"),
    [
        (send_over_http, "http", 1000, 1),
        *(
            pytest.param(*over, drain, marks=pytest.mark.endurance)
            for over in ((send_over_http, "http", 10_000), (send_over_grpc, "grpc", 5_000))
            for drain in (0, 1)
        ),
    ],
)
def test_servers_that_are_replaced_under_load_lose_no_request(models, tmp_path, send, port, requests, drain):
    """4 of 201 connections were reset when a server stopped, and an idle server under SIGTERM refused connections."""
    ports = Ports(models, tmp_path, *[f"--drain-seconds={drain}"][:drain])
    replace_under_load(ports, send, getattr(ports, port), requests)


@pytest.mark.parametrize("frontends", [0, 2])
def test_the_port_of_metrics_opens_when_all_others_are_open(models, tmp_path, frontends):
    """A recipe waits for it before it ends the old server. It opened before those of frontend processes."""
    options = [f"--processes={max(int(frontends), 1)}", "--reuse-http-port=true", "--reuse-grpc-port=true"]
    server = ServerProcess(models, *options, work=tmp_path, wait="")
    with server:
        # Without a pause: the other ports opened a moment later.
        server.wait_for(lambda: accepts(server.metrics_port, patience=0.5), "the port of metrics")
        assert accepts(server.http_port)
        assert accepts(server.grpc_port)
        assert server.get("/v2/health/ready").status == 200


def accepts(port: int, patience: float = 0) -> bool:
    """Whether a connection to *port* is accepted, within *patience* seconds."""
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=30):
            return True
        if time.monotonic() >= deadline:
            return False


def test_servers_share_the_ports_of_clients_and_not_that_of_metrics(models, tmp_path):
    """Whoever collects metrics must know whose they are."""
    ports = Ports(models, tmp_path)
    with ports.serve() as first, ports.serve() as second:
        for server in (first, second):
            assert f"Started OpenAI's API at 127.0.0.1:{ports.openai}" in server.log
        third = ServerProcess(
            models, f"--metrics-port={first.metrics_port}", work=tmp_path / "third", wait="", timeout=30
        )
        with contextlib.closing(contextlib.ExitStack()) as stack:
            third.start()
            stack.callback(third.kill)
            assert third.wait_exit() == 1
        assert (
            f"cannot serve metrics at 127.0.0.1:{first.metrics_port}: Address already in use by process {first.pid} "
            f"({psutil.Process(first.pid).name()}); set another address or port with --metrics-address or --metrics-port"
        ) in third.log
