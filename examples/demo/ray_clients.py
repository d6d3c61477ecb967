"""Clients of servers on Ray: each sends requests one after the other, and connects to another server when it has to."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from typing_extensions import Self

from naiad.core.errors import DeploymentError
from naiad.ray import ServerList

MODEL = "add_sub"
BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]} for name in ("LEFT", "RIGHT")
        ]
    }
)
SUM = [2.0, 4.0, 6.0, 8.0]
REQUESTS_OF_A_CONNECTION = 200  # then the client chooses again, so that new servers get their share
CONNECT_SECONDS = 2
NO_SERVER_SECONDS = 60  # a request that finds no server for so long has failed
PAUSE_SECONDS = 0.05


class Failure(NamedTuple):
    """A request without a right response, and why."""

    client: int
    address: str
    reason: str


class Clients:
    """Clients that send requests from entering the `with` block until leaving it.

    Args:
        servers: Where they look for servers.
        count: Number of clients.
    """

    def __init__(self, servers: ServerList, count: int) -> None:
        self._servers = servers
        self._answered = [0] * count
        self._addresses = [""] * count
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        self.failures: list[Failure] = []

    @property
    def answered(self) -> int:
        """Number of right responses so far."""
        return sum(self._answered)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while not self._ending.is_set():
            try:
                connection = self._connect(number)
            except DeploymentError as error:
                self.failures.append(Failure(number, "", str(error)))
                continue
            try:
                self._use(number, connection)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failures.append(Failure(number, self._addresses[number], f"{type(error).__name__}: {error}"))
            finally:
                connection.close()

    def _connect(self, number: int) -> http.client.HTTPConnection:
        """A connection to a server that accepts one. The request has not been sent yet, so trying on loses nothing."""
        refused: set[str] = set()
        deadline = time.monotonic() + NO_SERVER_SECONDS
        while True:
            try:
                self._addresses[number] = address = self._servers.choose(refused)
                connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=CONNECT_SECONDS)
                connection.connect()
            except (DeploymentError, OSError) as error:
                if time.monotonic() > deadline or self._ending.is_set():
                    raise DeploymentError(f"no server for {NO_SERVER_SECONDS} s: {error}") from error
                refused.add(self._addresses[number])
                self._ending.wait(PAUSE_SECONDS)
                continue
            connection.sock.settimeout(NO_SERVER_SECONDS)
            return connection

    def _use(self, number: int, connection: http.client.HTTPConnection) -> None:
        for _ in range(REQUESTS_OF_A_CONNECTION):
            if self._ending.is_set():
                return
            connection.request("POST", f"/v2/models/{MODEL}/infer", BODY)
            response = connection.getresponse()
            content = response.read()
            outputs = {each["name"]: each["data"] for each in json.loads(content).get("outputs", ())}
            if outputs.get("SUM") != SUM:
                raise ValueError(f"status {response.status}: {content[:200]!r}")
            self._answered[number] += 1
            if response.will_close:  # the server is about to stop
                return
