"""The guest's start as its host sees it: HELLO, LOAD, and then its word that the model is ready, or why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from naiad_stub import wire
from naiad_stub.messages import Completed, Failed, Hello, Load, Progress, Ready, StartMessage, pack

from naiad.errors import Code, ModelError, ProtocolError
from naiad.workers.compat import assert_never
from naiad.workers.exchange import CODES
from naiad.workers.guest import GuestProcess
from naiad.workers.launch import LaunchSpec
from naiad.workers.process import PROGRESS_CHECK_SECONDS, ProgressMonitor


class GuestStartup:
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
        self._progress = ProgressMonitor(spec.start_timeout)

    def on_message(self, message: StartMessage) -> None:
        """Take one message of the guest."""
        self._progress.record(self._loop.time())
        if self._answer.done():
            return
        match message:
            case Hello():
                self.python = message.python_version
                if message.protocol == wire.PROTOCOL_VERSION:
                    self._send(pack(Load(dict(self._spec.load))))
                else:
                    self._answer.set_exception(
                        ProtocolError(
                            f"the stub {self._spec.stub} speaks protocol {message.protocol}, this server "
                            f"{wire.PROTOCOL_VERSION}: remove it or copy the one of this release"
                        )
                    )
            case Progress():
                pass
            case Ready():
                self.has_is_ready = message.has_is_ready
                self._answer.set_result("")
            case Completed():
                self._answer.set_result(message.config)
            case Failed():
                code = CODES[message.code] if message.code < len(CODES) else Code.INTERNAL
                self._answer.set_exception(
                    ModelError(message.message, code=code, traceback_text=message.traceback_text)
                )
            case _:
                assert_never(message)

    async def wait(self) -> str:
        """Wait for the guest's word, for as long as it shows progress: heartbeats, or CPU time used.

        Returns:
            "" once the model is ready, or the completed configuration as JSON if LOAD asked for that.

        Raises:
            ModelError: If the model's code failed; with the guest's traceback.
            GuestExitedError: If the process ended or made no progress for the time the specification allows.
        """
        self._progress.start(self._process.pid, self._loop.time())
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
                raise self._process.exit_report("while it started")
            if self._progress.is_stalled(self._loop.time()):
                raise self._process.unhealthy(
                    f"it made no progress for {self._spec.start_timeout:g} s while it started (stub-timeout-seconds) "
                    "and was killed."
                )
