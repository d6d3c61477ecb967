"""Clients under load while processes of the server are killed one after the other, and what they were answered."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import psutil
from support.server import HOST, ServerProcess

CLIENTS = 6
_SIZES = (4, 3_000, 60_000)
"""Elements of FP32: in messages; in parts of segments and copied; borrowed."""


class LoadedClient:
    """A thread that sends requests with tensors of its own until it is stopped.

    Attributes:
        outcomes: Number of requests by outcome: `answered`, `closed` (the connection), or what was wrong.
    """

    def __init__(self, server: ServerProcess, seed: int, is_over: threading.Event) -> None:
        self.outcomes: Counter[str] = Counter()
        self._server = server
        self._random = np.random.default_rng(seed)
        self._is_over = is_over
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            connection = http.client.HTTPConnection(HOST, self._server.http_port, timeout=60)
            with contextlib.closing(connection):
                try:
                    while not self._is_over.is_set():
                        self.outcomes[self._ask(connection)] += 1
                except (ConnectionError, http.client.HTTPException):
                    self.outcomes["closed"] += 1

    def _ask(self, connection: http.client.HTTPConnection) -> str:
        size = int(self._random.choice(_SIZES))
        array = self._random.random(size, np.float32)
        number = str(self._random.integers(1 << 40))
        tensor = {"name": "IN", "datatype": "FP32", "shape": [size], "parameters": {"binary_data_size": array.nbytes}}
        head = json.dumps({"id": number, "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", "/v2/models/identity/infer", head + array.tobytes(), headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            return f"{response.status} {body[:200]!r}"
        end = int(response.headers["Inference-Header-Content-Length"])
        if json.loads(body[:end])["id"] != number:
            return "the answer to another request"
        return "answered" if body[end:] == array.tobytes() else "another tensor"


def serving(server: ServerProcess) -> list[psutil.Process]:
    """The processes that serve HTTP."""
    return [psutil.Process(server.pid), *others(server)]


def others(server: ServerProcess) -> list[psutil.Process]:
    """Those beside the coordinator."""
    reported = server.samples("naiad_process_connections{")
    found = []
    for process in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.Error):  # it has exited since
            command = process.cmdline()
            if "naiad-process" in command[:-1]:
                number = command[command.index("naiad-process") + 1]
                if f'naiad_process_connections{{process="{number}"}}' in reported:
                    found.append(process)
    return found


def kill_under_load(server: ServerProcess, seconds: float, count: int) -> tuple[Counter[str], int]:
    """Kill processes beside the coordinator while clients send requests: the outcomes of these, and the number of kills.

    Args:
        server: A server with the model `identity`.
        seconds: How long.
        count: How many processes it has.
    """
    is_over = threading.Event()
    clients = [LoadedClient(server, seed, is_over) for seed in range(CLIENTS)]
    for client in clients:
        client.thread.start()
    deadline, kills = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        answered = sum(client.outcomes["answered"] for client in clients)
        wait_for = _progress(clients, answered + 5 * CLIENTS)
        server.wait_for(lambda done=wait_for: done() and len(serving(server)) == count, "answers of all processes")
        random.choice(others(server)).send_signal(signal.SIGKILL)
        kills += 1
    server.wait_for(lambda: len(serving(server)) == count, "all processes")
    is_over.set()
    for client in clients:
        client.thread.join(60)
        assert not client.thread.is_alive(), "a request was never answered"
    return sum((client.outcomes for client in clients), Counter()), kills


def _progress(clients: list[LoadedClient], answered: int) -> Callable[[], bool]:
    return lambda: sum(client.outcomes["answered"] for client in clients) >= answered


def reader_of(fifo: Path) -> IO[bytes] | None:
    """The other end of a FIFO, once it is being read."""
    try:
        return os.fdopen(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "wb")
    except OSError:
        return None
