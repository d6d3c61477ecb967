"""Servers that share ports are replaced one after the other, and no client loses a request."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from serving.repositories import document, repository
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


class Clients:
    """Threads that send requests on connections that they keep, and open others where the server says so."""

    def __init__(self, send: Callable[[Clients, int], None], port: int, count: int) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=send, args=(self, port)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def has_answered(self, count: int) -> bool:
        """Whether so many requests were answered, or one has failed."""
        return self.answered >= count or bool(self.failures)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()


def send_over_http(clients: Clients, port: int) -> None:
    body = json.dumps(document(1.0)).encode()
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    while not clients.stopping.is_set():
        try:
            connection.request("POST", "/v2/models/identity/infer", body)
            response = connection.getresponse()  # closes the connection after `Connection: close`
            content = response.read()
            if response.status == 200:
                clients.answered += 1
            else:
                clients.failures.append(f"{response.status} {content!r}")
        except (OSError, http.client.HTTPException) as error:
            clients.failures.append(repr(error))
            connection.close()
    connection.close()


def send_over_grpc(clients: Clients, port: int) -> None:
    """A channel reconnects by itself."""
    tensor = triton.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    # A channel of its own, rather than one that clients with equal settings share.
    channel_args = [("grpc.use_local_subchannel_pool", 1)]
    with triton.InferenceServerClient(f"{HOST}:{port}", channel_args=channel_args) as client:
        while not clients.stopping.is_set():
            try:
                client.infer("identity", [tensor], client_timeout=30)
                clients.answered += 1
            except triton.InferenceServerException as error:
                clients.failures.append(str(error))


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


@pytest.mark.slow
@pytest.mark.parametrize("drain", [0, 1])
@pytest.mark.parametrize(
    ("send", "port", "requests"), [(send_over_http, "http", 10_000), (send_over_grpc, "grpc", 5_000)]
)
def test_servers_that_are_replaced_under_load_lose_no_request(models, tmp_path, send, port, requests, drain):
    """4 of 201 connections were reset when a server stopped, and an idle server under SIGTERM refused connections."""
    ports = Ports(models, tmp_path, *[f"--drain-seconds={drain}"][:drain])
    replace_under_load(ports, send, getattr(ports, port), requests)


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
            f"cannot serve metrics at 127.0.0.1:{first.metrics_port}: Address already in use; "
            "set another address or port with --metrics-address or --metrics-port"
        ) in third.log
