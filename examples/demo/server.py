"""The real server as a separate process, on free ports of the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import final

HOST = "127.0.0.1"


class ServerError(Exception):
    """The server did not start, or did not start in time."""


@final
class Server:
    """A server that is started on entering the `with` block, ready inside it, and stopped on leaving.

    Args:
        options: Arguments of `tritonserver` besides its addresses and ports.
        log: Where its log goes.
        timeout: Seconds it has to become ready, and to end.
    """

    def __init__(self, options: list[str], log: Path, timeout: float = 120) -> None:
        self._http, self._grpc, metrics, self._openai = free_ports(4)
        self.log = log
        self._timeout = timeout
        self._command = [str(Path(sys.executable).with_name("tritonserver")), *options]
        for name, port in (("http", self._http), ("grpc", self._grpc), ("metrics", metrics)):
            self._command += [f"--{name}-address={HOST}", f"--{name}-port={port}"]
        self._command.append(f"--openai-port={self._openai}")

    @property
    def http_url(self) -> str:
        """Address of the HTTP service."""
        return f"{HOST}:{self._http}"

    @property
    def grpc_url(self) -> str:
        """Address of the gRPC service."""
        return f"{HOST}:{self._grpc}"

    @property
    def openai_url(self) -> str:
        """Address of OpenAI's API."""
        return f"http://{HOST}:{self._openai}/v1"

    def __enter__(self) -> Server:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._is_ready():
            code = self._process.poll()
            if code is not None:
                raise ServerError(f"the server ended with code {code}; {self._last_lines()}")
            if time.monotonic() > deadline:
                raise ServerError(f"the server was not ready within {self._timeout} s; {self._last_lines()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._http, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.client.OK
        return False

    def _last_lines(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"the end of {self.log}:", *lines[-30:]])

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as stack:
        # All sockets are open at the same time, so that the ports differ.
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
