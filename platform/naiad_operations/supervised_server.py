"""A server in a child process that never outlives this one, and answers it over a socket.

In a separate process, the server has all features of `naiad serve`, and its event loop shares no lock with the
threads of this one. `python -m naiad_operations.supervised_server FD [FLAGS]...` is that server: `naiad serve`, which
sends and receives lines of JSON over the inherited socket *FD*:

- When its ports are open, it sends `{"ports": {"http": 8000, ...}}`, once.
- `{"do": "report"}` is answered with `{"ready": bool, "models": {str: int, ...}, "polls": int, "problems": [str,
  ...]}`: whether it accepts requests; how many are queued or executing, by model, where there are any; the number of
  the last completed poll, and what that could not load.
- `{"do": "poll"}` has the server look at its repositories, in poll mode. The answer is the number of this poll:
  `{"poll": int}`. Loading takes any time, and reports are answered meanwhile.

It stops when the other end of the socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from naiad.core.errors import DeploymentError, NaiadError
from naiad.engine.lifecycle.states import UNLOADED

if TYPE_CHECKING:
    from naiad.engine.engine import Engine

_SIGNAL_SECONDS = 0.2
_ANSWER_SECONDS = 8.0
_LOOK_SECONDS = 0.2


class SupervisedServer:
    """A server and the socket over which it answers. All methods may be called from any thread."""

    def __init__(self, flags: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [sys.executable, "-m", __name__, str(theirs.fileno()), *flags]
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


class SocketSupervisor:
    """The program at the other end of a socket; implements `app.Supervisor`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._writer: asyncio.StreamWriter | None = None
        self._polling: asyncio.Task[None] | None = None
        self._requested = self._completed = 0
        self._problems: list[str] = []

    async def run(self, engine: Engine) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._channel)
        try:
            while line := await reader.readline():
                self._send(self._answer(engine, json.loads(line)["do"]))
        except ConnectionError:
            pass  # the program was killed
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(_SIGNAL_SECONDS)
        # This one ends `--drain-seconds`: the next server may need this one's GPU.
        os.kill(os.getpid(), signal.SIGTERM)

    def on_listening(self, ports: Mapping[str, int]) -> None:
        self._send({"ports": dict(ports)})

    def _answer(self, engine: Engine, question: str) -> Mapping[str, Any]:
        if question == "poll":
            self._requested += 1
            if self._polling is None or self._polling.done():
                self._polling = asyncio.ensure_future(self._poll(engine))
            return {"poll": self._requested}
        requests: Counter[str] = Counter()
        for each in engine.statistics():
            requests[each.name] += each.pending_count + each.running_count
        return {
            "ready": not engine.is_exiting and engine.is_ready(),
            "models": {name: count for name, count in requests.items() if count},
            "polls": self._completed,
            "problems": self._problems,
        }

    async def _poll(self, engine: Engine) -> None:
        """Poll until no request is newer than the poll."""
        while self._completed < self._requested:
            number = self._requested
            try:
                await engine.poll()
                # The status of a model without a problem is its state alone.
                states = [(name, status) for name, _, status in engine.outcomes()]
                self._problems = [f"{name}: {it}" for name, it in states if ": " in it and UNLOADED not in it]
            except NaiadError as error:
                self._problems = [error.message]
            self._completed = number

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\n")


def main(arguments: Sequence[str]) -> int:
    """Run the server; *arguments* are the socket's file descriptor and the server's flags. Returns the exit code."""
    from naiad.cli.serve import serve
    from naiad.core.standard_streams import open_standard_streams

    open_standard_streams()
    channel = socket.socket(fileno=int(arguments[0]))
    return serve(arguments[1:], "naiad serve", SocketSupervisor(channel))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
