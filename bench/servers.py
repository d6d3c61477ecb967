"""Start, wait for, look into and end the servers under measurement. Both are treated alike to the last option."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

HOST = "127.0.0.1"
START_TIMEOUT = 240.0
STOP_TIMEOUT = 60.0
# Short compared with starts of several hundred milliseconds, and long enough to use little CPU.
POLL = 0.005


@dataclasses.dataclass(frozen=True)
class Program:
    """One of the two servers: its command and its environment variables."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]

    def child_environ(self, cache: Path) -> dict[str, str]:
        """The environment variables of the process.

        The server inherits no PYTHON* variables: some shells export PYTHONDONTWRITEBYTECODE, and every start would
        compile all modules again. The cache folder belongs to the run, so that the first start finds it empty.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NAIAD_"))}
        return {**inherited, "XDG_CACHE_HOME": str(cache), **self.environ}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Resident memory in bytes: of the server's process, and the mean of its instances' processes."""

    server_pss: float
    instance_pss: float
    instance_uss: float
    instance_rss: float


class Server:
    """A running server; made by `running`."""

    def __init__(self, program: Program, repository: Path, work: Path) -> None:
        self.program = program
        self.http_port, self.grpc_port, metrics_port = free_ports(3)
        options = [
            f"--model-repository={repository}",
            f"--http-address={HOST}",
            f"--http-port={self.http_port}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={metrics_port}",
        ]
        self._log = work / f"{program.name}.log"
        began = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*program.command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=program.child_environ(work / f"cache-{program.name}"),
            )
        try:
            self._wait_ready(began + START_TIMEOUT)
        except BaseException:
            self.kill()
            raise
        self.start_seconds = time.perf_counter() - began

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._process.pid

    @property
    def log(self) -> str:
        """The output of the server and of its instances."""
        return self._log.read_text(errors="replace")

    def address(self, protocol: str) -> str:
        """The address to which perf_analyzer sends its requests."""
        return f"{HOST}:{self.http_port if protocol == 'http' else self.grpc_port}"

    def inference_count(self, model: str) -> int:
        """Number of requests that a model has executed since it was loaded."""
        content: Any = json.loads(self._get(f"/v2/models/{model}/stats")[1])
        return int(content["model_stats"][0]["inference_count"])

    def cpu_seconds(self) -> tuple[float, float]:
        """CPU time used so far by the server's process and by its instances' processes."""
        own, below = self._process_and_family()
        return _cpu(own), sum(map(_cpu, below))

    def memory(self, instances: int) -> Memory:
        """Memory of the server and of its `instances` instances; all processes below the server count as instances."""
        own, below = self._process_and_family()
        held = [process.memory_full_info() for process in below]
        return Memory(
            server_pss=own.memory_full_info().pss,
            instance_pss=sum(each.pss for each in held) / instances,
            instance_uss=sum(each.uss for each in held) / instances,
            instance_rss=sum(each.rss for each in held) / instances,
        )

    def stop(self) -> None:
        """Stop the server with SIGTERM; kill it if it does not exit in time."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            print(f"{self.program.name} did not exit on SIGTERM within {STOP_TIMEOUT:.0f} s; killed")
            self.kill()

    def kill(self) -> None:
        """Kill the server and all processes that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            _, below = self._process_and_family()
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.kill()
        self._process.wait()

    def _process_and_family(self) -> tuple[psutil.Process, list[psutil.Process]]:
        own = psutil.Process(self._process.pid)
        return own, own.children(recursive=True)

    def _wait_ready(self, deadline: float) -> None:
        while not self._is_ready():
            if self._process.poll() is not None:
                raise SystemExit(
                    f"{self.program.name} exited with code {self._process.returncode}:\n{self._log_tail()}"
                )
            if time.perf_counter() > deadline:
                raise SystemExit(f"{self.program.name} is not ready after {START_TIMEOUT:.0f} s:\n{self._log_tail()}")
            time.sleep(POLL)

    def _is_ready(self) -> bool:
        try:
            return self._get("/v2/health/ready")[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False  # not listening yet

    def _get(self, path: str) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection(HOST, self.http_port, timeout=30)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


@contextlib.contextmanager
def running(program: Program, repository: Path, work: Path) -> Iterator[Server]:
    """A ready server with this repository; it is stopped on leaving the `with` block."""
    server = Server(program, repository, work)
    try:
        yield server
    finally:
        server.stop()


def free_ports(count: int) -> list[int]:
    # Below the range of ephemeral ports: a connection of this process to a starting server could otherwise get the
    # port on which the server will listen.
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(22000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
    return found


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
