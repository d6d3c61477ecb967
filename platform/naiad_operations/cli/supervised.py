"""`python -m naiad_operations.cli.supervised FD [FLAGS]...`: a server that another program supervises over a socket.

It is `naiad serve`, and sends and receives lines of JSON over the inherited socket *FD*:

- When its ports are open, it sends `{"ports": {"http": 8000, ...}}`, once.
- `{"do": "report"}` is answered with `{"ready": bool, "models": {str: int, ...}, "polls": int, "problems": [str,
  ...]}`: whether it accepts requests; how many are queued or executing, by model, where there are any; the number of
  the last completed poll, and what that could not load.
- `{"do": "poll"}` has the server look at its repositories, in poll mode. The answer is the number of this poll:
  `{"poll": int}`. Loading takes any time, and reports are answered meanwhile.

It stops when the other end of the socket is closed, so it never outlives the program that started it, even if that is
killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from naiad.cli.serve import serve
from naiad.core.errors import NaiadError
from naiad.core.standard_streams import open_standard_streams
from naiad.engine.engine import Engine
from naiad.engine.lifecycle.states import UNLOADED

__all__ = ["SocketSupervisor", "main"]

_SIGNAL_SECONDS = 0.2


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
                self._send(self._answer(engine, orjson.loads(line)["do"]))
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
        self._writer.write(orjson.dumps(message) + b"\n")


def main(arguments: Sequence[str]) -> int:
    """Run the server; *arguments* are the socket's file descriptor and the server's flags. Returns the exit code."""
    open_standard_streams()
    channel = socket.socket(fileno=int(arguments[0]))
    return serve(arguments[1:], "naiad serve", SocketSupervisor(channel))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
