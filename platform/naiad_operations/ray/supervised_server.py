"""A server in a child process, which never outlives this one; `naiad_operations.cli.supervised` has the other side.

In a separate process, the server has all features of `naiad serve`, and its event loop shares no lock of Python with
Ray's threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.core.errors import DeploymentError

__all__ = ["SupervisedServer"]

_MODULE = "naiad_operations.cli.supervised"
_ANSWER_SECONDS = 8.0
_LOOK_SECONDS = 0.2


class SupervisedServer:
    """A server and the socket over which it answers. All methods may be called from any thread."""

    def __init__(self, flags: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start a server with these flags, and wait until its models are loaded and its ports open."""
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [sys.executable, "-m", _MODULE, str(theirs.fileno()), *flags]
            # It does not inherit our end, so that end closes with this process, and the server reads that.
            self._process = subprocess.Popen(
                arguments, pass_fds=[theirs.fileno()], env={**os.environ, **(environ or {})}
            )
        self._socket = ours
        self._lines = ours.makefile("rb")
        try:
            self.ports: Mapping[str, int] = self._read()["ports"]
        except BaseException:
            self.stop(0)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def report(self) -> Mapping[str, Any]:
        """Whether the server is ready, and the number of requests of each model."""
        return self._ask("report")

    def poll(self) -> Sequence[str]:
        """Have the server load what has changed in its repositories; what could not be loaded, one text each."""
        number = self._ask("poll")["poll"]
        # Loading may take long. Meanwhile, other threads ask for reports.
        while (report := self.report())["polls"] < number:
            time.sleep(_LOOK_SECONDS)
        problems: Sequence[str] = report["problems"]
        return problems

    def stop(self, seconds: float) -> None:
        """Have the server drain and stop; kill it after *seconds*."""
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lines.close()
        self._socket.close()

    def _ask(self, question: str) -> Mapping[str, Any]:
        with self._lock:
            self._socket.settimeout(_ANSWER_SECONDS)
            try:
                self._socket.sendall(json.dumps({"do": question}).encode() + b"\n")
                return self._read()
            except TimeoutError:
                # A later answer would be taken for that of the next question.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise DeploymentError(
                    f"the server did not answer within {_ANSWER_SECONDS:g} s; it is stopped"
                ) from None
            except OSError as error:
                raise self._exited() from error

    def _read(self) -> Mapping[str, Any]:
        line = self._lines.readline()
        if not line:
            raise self._exited()
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def _exited(self) -> DeploymentError:
        status = self._process.wait()
        return DeploymentError(
            f"the server exited with status {status}; its log, in that of this replica, has the cause"
        )
