"""Servers that are forked from a process which has imported everything: what `subprocess.Popen` is for other ones."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FORKER = Path(__file__).with_name("server_forker.py")
_START_SECONDS = 60.0
LEFT_BEHIND = "LEFT BEHIND BY THE ENGINE: "
"""How the line of a server's log begins that names what its engine still had at the end: see `idle`."""


class ForkedServer:
    """One server, with the part of `Popen` that tests use.

    Attributes:
        pid: Its process id.
        returncode: How it ended, as `Popen.returncode`; None while it runs.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path, folder: Path) -> None:
        self.returncode: int | None = None
        order = {
            "command": list(command),
            "environ": dict(environ),
            "log": str(log),
            "folder": str(folder),
            "mark": LEFT_BEHIND,
        }
        self.pid = _forker().start(self, order)

    def poll(self) -> int | None:
        if self.returncode is None:
            _forker().receive(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("tritonserver", timeout or 0)
            _forker().receive(0.05)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended, and been waited for, before its end is reported here.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Forker:
    """The process that forks, and what it has reported."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, str(_FORKER), str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._received = b""
        self._pids: dict[int, int] = {}
        self._running: dict[int, ForkedServer] = {}
        self._ended: dict[int, int] = {}
        atexit.register(self.close)

    def start(self, server: ForkedServer, order: Mapping[str, Any]) -> int:
        number = next(self._numbers)
        self._socket.sendall(json.dumps({"number": number, **order}).encode() + b"\n")
        deadline = time.monotonic() + _START_SECONDS
        while (pid := self._pids.pop(number, 0)) == 0:
            assert time.monotonic() < deadline, "no server was forked"
            self.receive(1)
        with self._lock:
            self._running[pid] = server
            self._settle(pid)
        return pid

    def receive(self, timeout: float) -> None:
        """Take in what was reported; wait up to *timeout* seconds for it."""
        with self._lock:
            if not select.select([self._socket], [], [], timeout)[0]:
                return
            data = self._socket.recv(1 << 16)
            assert data, "the process that forks servers has ended"
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                if "started" in report:
                    self._pids[report["started"]] = report["pid"]
                else:
                    self._ended[report["ended"]] = report["code"]
                    self._settle(report["ended"])

    def _settle(self, pid: int) -> None:
        if pid in self._ended and pid in self._running:
            self._running.pop(pid).returncode = self._ended.pop(pid)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_made: list[_Forker] = []


def _forker() -> _Forker:
    if not _made:
        _made.append(_Forker())
    return _made[0]
