"""Clients that send requests without a pause while servers are replaced."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable

import numpy as np
import tritonclient.grpc as triton
from serving.repositories import document
from support.client_inputs import input_of
from support.server import HOST
from support.threads import in_thread


class Clients:
    """Threads that send requests on connections that they keep, and open others where the server says so."""

    def __init__(self, send: Callable[[Clients, int], None], port: int, count: int) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self._clients = [in_thread(send, self, port) for _ in range(count)]

    def has_answered(self, count: int) -> bool:
        """Whether so many requests were answered, or one has failed."""
        return self.answered >= count or bool(self.failures)

    def stop(self) -> None:
        self.stopping.set()
        for client in self._clients:
            client.result()


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
    tensor = input_of(triton, "IN", np.ones(1, np.float32))
    # A channel of its own, rather than one that clients with equal settings share.
    channel_args = [("grpc.use_local_subchannel_pool", 1)]
    with triton.InferenceServerClient(f"{HOST}:{port}", channel_args=channel_args) as client:
        while not clients.stopping.is_set():
            try:
                client.infer("identity", [tensor], client_timeout=30)
                clients.answered += 1
            except triton.InferenceServerException as error:
                clients.failures.append(str(error))
