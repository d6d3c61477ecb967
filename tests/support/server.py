"""A real server process for tests: started on free loopback ports, waited for, ended by its id, checked for leftovers.

    with ServerProcess(repository, work=tmp_path) as server:
        reply = server.post("/v2/models/add_sub/infer", {"inputs": [...]})

The same class starts the reference (`command=`), so that both servers are asked in the same way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import platformdirs
import psutil
from support.forked_servers import LEFT_BEHIND, ForkedServer
from support.guests_of import give_environment
from support.waiting import WaitedInVain, until

HOST = "127.0.0.1"
EXIT_TIMEOUT = 30
"""Seconds for which a server waits for requests in flight when it is to end (--exit-timeout-secs)."""
_FAMILY_SECONDS = 0.5
"""How often the processes below a server are listed while a condition is polled."""
_END_BYTES = 1 << 17
"""Bytes at the end of a log in which a stop is reported."""
_BLOCK = 500
"""Ports."""
_REST_SECONDS = 0.3
"""Processor time that a server may use before its log is read: one that has not come to rest by then is busy."""
_STORE = Path("naiad", "environments")
"""The store of environments in the user's cache."""
shared_guests: list[Path] = []
"""At most one: a directory for the guest's files, which then all servers share that have no store of their own.

A user's servers share these files, too. Without that the guests of each server of a test compile 30 modules.
"""
PROCESSES_VARIABLE = "NAIAD_TEST_PROCESSES"
TRITONSERVER = Path(sys.executable).with_name("tritonserver")


def _processes(program: str, options: Sequence[str]) -> list[str]:
    """`--processes` as the environment asks for (make test PROCESSES=2), where the server can be started with it."""
    count = os.environ.get(PROCESSES_VARIABLE, "")
    is_possible = program == str(TRITONSERVER) and not any(option.startswith("--processes") for option in options)
    return [f"--processes={count}"] if count and is_possible else []


class ServerError(AssertionError):
    """The server did not do what the test takes for granted: start, become ready, end, leave nothing behind."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error answer; anything but `{"error": text}` fails the test."""
        content = self.json()
        assert list(content) == ["error"], content
        return str(content["error"])


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below the range outgoing connections are given (so none is lost before it is bound).

    Between here and the bind of a server a second may pass: each of the processes that run tests side by side, of this
    run or another, has a block of ports of its own, and takes one after the other.
    """
    found: list[int] = []
    while len(found) < count:
        port = next(_ports)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
    return found


def _own_ports() -> Iterator[int]:
    """The ports of a block that no other process has locked; the lock ends with this process."""
    blocks = range(22000, 32000, _BLOCK)
    for first in random.SystemRandom().sample(blocks, len(blocks)):  # `random.random` is seeded alike in all runs
        lock = os.open(Path(tempfile.gettempdir()) / f"naiad-test-ports-{first}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return itertools.cycle(range(first, first + _BLOCK))
    return itertools.cycle(range(first, first + _BLOCK))  # more runs than blocks share one


_ports = _own_ports()


def still_running(processes: Iterable[psutil.Process], timeout: float) -> list[psutil.Process]:
    """Those of some processes that still run after that many seconds.

    Not `psutil.wait_procs`: Linux 6.16 and newer have an error of their own for the id of a process that a thread of
    another one has by now, which psutil does not expect.
    """
    deadline = time.monotonic() + timeout
    while (alive := [each for each in processes if _runs(each)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


def _runs(process: psutil.Process) -> bool:
    # A container's first process may never reap orphans; a zombie holds nothing and is no leftover.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _has_work(pid: int) -> bool:
    """Whether a thread of the process runs, waits for a processor or for a disk; False if the process has ended."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return True  # a thread has just ended; or the process, which the next look shows
    return any(stat.rpartition(")")[2].split()[0] in "RD" for stat in stats)


def _processor_seconds(pid: int) -> float:
    """Processor time of all threads of the process so far; 0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _is_sweeper(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("sweeper_process.py" in argument for argument in process.cmdline())
    return False


def _is_of_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "naiad-process" in process.cmdline()
    return False


class ServerProcess:
    """A server with HTTP, gRPC and metrics on loopback ports of its own.

    Args:
        repository: One model repository or several.
        options: Further command-line arguments.
        work: A folder of the test's own: log, caches (the store of environments among them).
        command: What to start; the installed `tritonserver` unless told.
        environ: Variables to add to the inherited ones; None as value removes one.
        wait: What entering waits for: "live", "ready", or "loaded", which is the end of the start, whatever failed; ""
            returns at once (for starts that are to fail).
        timeout: Bound of every wait, in seconds.
        grace: How long guests may outlive the server, in seconds.
        directory: The working directory of the server; that of the tests unless told.
        is_fresh: Start a new interpreter. Most servers are forked from a process that has done the imports.
    """

    def __init__(
        self,
        repository: Path | Sequence[Path] | None,
        *options: str,
        work: Path,
        command: Sequence[str | Path] = (TRITONSERVER,),
        environ: Mapping[str, str | None] | None = None,
        wait: str = "ready",
        timeout: float = 60,
        grace: float = 20,
        directory: Path | None = None,
        is_fresh: bool = False,
    ) -> None:
        repositories = [repository] if isinstance(repository, Path) else list(repository or ())
        self._repositories = repositories
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self.command = [
            *map(str, command),
            *(f"--model-repository={path}" for path in repositories),
            f"--http-address={HOST}",
            f"--http-port={self.http_port}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            *_processes(str(command[0]), options),
            *options,
        ]
        self.work = work
        self.log_path = work / f"server-{self.http_port}.log"
        self.timeout = timeout
        self.grace = grace
        self._directory = directory
        self._wait = wait
        self._environ = self._child_environ(environ or {})
        # An interpreter or its loader reads these when it starts; for LD_LIBRARY_PATH see `server_forker`.
        of_interpreter = any(name.startswith(("PYTHON", "LD_PRELOAD", "MALLOC")) for name in environ or {})
        self._is_forked = self.command[0] == str(TRITONSERVER) and not is_fresh and not of_interpreter
        self._process: subprocess.Popen[bytes] | ForkedServer | None = None
        self._family: dict[int, psutil.Process] = {}
        self._family_read = 0.0
        self._log_begin = 0

    def __repr__(self) -> str:
        state = "not started" if self._process is None else f"pid={self.pid} exit={self._process.poll()}"
        return f"<ServerProcess {state} http={self.http_port} grpc={self.grpc_port}>"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    @property
    def http_url(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{HOST}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"{HOST}:{self.metrics_port}"

    @property
    def log(self) -> str:
        """What the server and its guests have printed so far, since `begin_log` if that was called."""
        self._let_lines_be_written()
        return self._lines_so_far()

    def _lines_so_far(self) -> str:
        return self.log_path.read_bytes()[self._log_begin :].decode(errors="replace") if self.log_path.exists() else ""

    def begin_log(self) -> None:
        """Let `log` begin here: for tests that share a server and count lines of its log."""
        self._log_begin = self.log_path.stat().st_size

    def __enter__(self) -> ServerProcess:  # noqa: PYI034 - typing.Self is 3.11+
        self.start()
        try:
            if self._wait == "loaded":
                self.wait_log("Started HTTPService at ")
            elif self._wait:
                self.wait_health(self._wait)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            # Judging the end as well would hide the failure that brought us here.
            self.kill()
            if isinstance(error, AssertionError):
                print(f"--- log of {self!r}\n{self.log}")

    def start(self) -> None:
        """Start the process; waits for nothing."""
        self.work.mkdir(parents=True, exist_ok=True)
        self._share_guests()
        give_environment(self._repositories)
        if self._is_forked:
            folder = self._directory or Path.cwd()
            self._process = ForkedServer(self.command, self._environ, self.log_path, folder)
            return
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                cwd=self._directory,
            )

    def wait_health(self, kind: str) -> None:
        """Until `/v2/health/<kind>` answers 200; a server that ends meanwhile is an error with its log."""
        self.wait_for(lambda: self._health(kind), f"/v2/health/{kind} to answer 200")

    def wait_exit(self, timeout: float | None = None) -> int:
        """Until the process has ended by itself; its exit code."""
        assert self._process is not None, "the server has not been started"
        self._remember_family()
        try:
            code = self._process.wait(timeout or self.timeout)
        except subprocess.TimeoutExpired:
            raise ServerError(f"the server runs on; its log:\n{self.log}") from None
        self._check_leftovers()
        return code

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """As `until`, but gives up as soon as the server has ended, and shows its log."""
        try:
            return until(lambda: self._while_running(condition), what, self.timeout)
        except (ServerError, WaitedInVain) as error:
            raise ServerError(f"{error}\n--- log\n{self.log}") from None

    def wait_log(self, text: str) -> None:
        """Until the log holds `text`."""
        self.wait_for(lambda: text in self._lines_so_far(), f"the log to say {text!r}")

    def children(self) -> list[psutil.Process]:
        """The processes below the server now: its guests and what they started, without its sweeper and other processes."""
        return [process for process in self._below() if not _is_of_server(process)]

    def others(self) -> list[psutil.Process]:
        """The processes that serve the ports with it (`--processes`)."""
        return [process for process in self._below() if _is_of_server(process)]

    def serving(self) -> list[psutil.Process]:
        """All processes that serve the ports."""
        return [psutil.Process(self.pid), *self.others()]

    def processes(self) -> list[psutil.Process]:
        """The server's own process, the others that serve its ports, and its `children`: those that do its work."""
        return [psutil.Process(self.pid), *self._below()]

    def _below(self) -> list[psutil.Process]:
        self._remember_family()
        return [process for process in self._family.values() if process.is_running() and not _is_sweeper(process)]

    def stop(self) -> int:
        """End by SIGTERM as an operator does; must end in time and leave no process behind. Returns the exit code."""
        assert self._process is not None, "the server has not been started"
        if self._process.poll() is None:
            self._remember_family()
            self._process.send_signal(signal.SIGTERM)
        patience = min(self.timeout, EXIT_TIMEOUT)  # what it waits for itself, if told nothing else, is an error, too
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"the server did not end on SIGTERM within {patience} s:\n{self.log}") from None
        self._check_leftovers()
        return code

    def kill(self) -> None:
        """End everything at once, by id, without judging."""
        if self._process is None:
            return
        self._remember_family()
        self._process.kill()
        self._process.wait()
        for process in self._family.values():
            # psutil compares start times, so an id that was given away since is left alone.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """Post bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, content, headers)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        with contextlib.closing(http.client.HTTPConnection(HOST, self.http_port, timeout=self.timeout)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def metrics(self) -> str:
        """The page of metrics."""
        with contextlib.closing(
            http.client.HTTPConnection(HOST, self.metrics_port, timeout=self.timeout)
        ) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def samples(self, start: str) -> dict[str, float]:
        """Values on the page of metrics, by the names and labels of those that begin with *start*."""
        lines = (line.rpartition(" ") for line in self.metrics().splitlines() if line.startswith(start))
        return {series: float(value) for series, _, value in lines}

    def _child_environ(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        # A store of environments in the user's cache would make one test's start another's second start.
        own: dict[str, str | None] = {"XDG_CACHE_HOME": str(self.work / "cache"), "NAIAD_STORE": None}
        environ: dict[str, str | None] = {**os.environ, **own, **changes}
        return {name: value for name, value in environ.items() if value is not None}

    def _share_guests(self) -> None:
        cache = self.work / "cache"
        if shared_guests and self._environ.get("XDG_CACHE_HOME") == str(cache) and "NAIAD_STORE" not in self._environ:
            (cache / _STORE).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (cache / _STORE / "guests").symlink_to(shared_guests[0])
            with contextlib.suppress(FileExistsError):
                (cache / "naiad" / "pip").symlink_to(platformdirs.user_cache_path("naiad", appauthor=False) / "pip")

    def _while_running(self, condition: Callable[[], Any]) -> Any:
        assert self._process is not None, "the server has not been started"
        # Reading the table of all processes takes several milliseconds, and conditions are polled every 40 ms.
        if time.monotonic() - self._family_read > _FAMILY_SECONDS:
            self._remember_family()
        value = condition()
        if not value and self._process.poll() is not None:
            raise ServerError(f"the server ended with code {self._process.returncode}")
        return value

    def _let_lines_be_written(self) -> None:
        """Wait until no thread of the server has anything to do, or it has used a third of a second of a processor.

        The server writes its log on a thread, so a line may be written after the response of the request that caused
        it. A busy server never comes to rest: its lines are those that were written by then. One that only waits for
        its turn on a busy machine uses no processor.
        """
        if self._process is None:
            return
        pid, deadline = self._process.pid, time.monotonic() + self.timeout
        enough = _processor_seconds(pid) + _REST_SECONDS
        pause = 0.001  # doubled: reading the states of all threads takes as long as many a request
        while _has_work(pid) and _processor_seconds(pid) < enough and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _health(self, kind: str) -> bool:
        try:
            return self.get(f"/v2/health/{kind}").status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False  # not listening yet

    def _remember_family(self) -> None:
        # Asked while the server lives: afterwards a guest's parent is init and nothing says whose it was.
        with contextlib.suppress(psutil.NoSuchProcess):
            found: Iterable[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
            self._family.update({process.pid: process for process in found})
        self._family_read = time.monotonic()

    def _check_leftovers(self) -> None:
        if self.log_path.is_file():  # some tests have a pipe there: to read it would wait for its writers
            with self.log_path.open("rb") as log:
                log.seek(max(self.log_path.stat().st_size - _END_BYTES, 0))  # some logs have a gigabyte
                end = log.read().decode(errors="replace")
            if LEFT_BEHIND in end:
                raise ServerError(LEFT_BEHIND + end.partition(LEFT_BEHIND)[2].partition("\n")[0])
        alive = still_running(self._family.values(), self.grace)
        if alive:
            names = ", ".join(f"{process.pid} {' '.join(process.cmdline())[:200]}" for process in alive)
            self.kill()
            raise ServerError(f"the server ended but left processes behind: {names}")
