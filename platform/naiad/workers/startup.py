"""The guest's start as its host sees it: HELLO, LOAD, and then its word that the model is ready, or why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from naiad_stub import wire

from naiad.errors import ModelError, ProtocolError
from naiad.workers.exchange import CODES
from naiad.workers.guest import GuestProcess
from naiad.workers.launch import LaunchSpec
from naiad.workers.process import PROGRESS_CHECK_SECONDS, Progress


class Startup:
    """One start.

    Attributes:
        python: Version of the guest's interpreter, once it said hello.
        has_is_ready: Whether its model wants to be asked.
    """

    def __init__(self, spec: LaunchSpec, process: GuestProcess, send: Callable[[bytes], None]) -> None:
        self.python = ""
        self.has_is_ready = False
        self._spec = spec
        self._process = process
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[str] = self._loop.create_future()
        self._progress = Progress(spec.start_timeout)

    def take(self, kind: int, fields: Sequence[object]) -> None:
        """Take one message of the guest."""
        self._progress.saw(self._loop.time())
        if self._answer.done():
            return
        if kind == wire.Kind.HELLO:
            version, _, self.python, _ = fields  # type: ignore[assignment]
            if version != wire.PROTOCOL_VERSION:
                self._answer.set_exception(
                    ProtocolError(
                        f"the stub {self._spec.stub} speaks protocol {version}, this server {wire.PROTOCOL_VERSION}: "
                        "remove it or copy the one of this release"
                    )
                )
                return
            self._send(wire.pack(wire.Kind.LOAD, dict(self._spec.load)))
        elif kind == wire.Kind.READY:
            self.has_is_ready = bool(fields[1])
            self._answer.set_result("")
        elif kind == wire.Kind.COMPLETED:
            self._answer.set_result(str(fields[0]))
        elif kind == wire.Kind.FAILED:
            code, message, traceback_text = fields
            number = code if isinstance(code, int) and code < len(CODES) else 1
            self._answer.set_exception(ModelError(str(message), code=CODES[number], traceback_text=str(traceback_text)))

    async def wait(self) -> str:
        """Wait for the guest's word, for as long as it shows progress: heartbeats, or CPU time used.

        Returns:
            "" once the model is ready, or the completed configuration as JSON if LOAD asked for that.

        Raises:
            ModelError: If the model's code failed; with the guest's traceback.
            GuestDiedError: If the process ended or made no progress for the time the specification allows.
        """
        self._progress.watch(self._process.pid, self._loop.time())
        exited = self._process.exited
        while True:
            waited: list[asyncio.Future[Any]] = [self._answer, exited]
            await asyncio.wait(waited, timeout=PROGRESS_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._answer.done():
                answer = self._answer.result()
                # Ready and already gone: nobody would be told of that end any more. (Completing ends with an exit.)
                if answer or not exited.done():
                    return answer
            if exited.done():
                raise self._process.obituary("while it started")
            if self._progress.is_missing(self._loop.time()):
                raise self._process.unhealthy(
                    f"it made no progress for {self._spec.start_timeout:g} s while it started (stub-timeout-seconds) "
                    "and was killed."
                )
