"""The start of a guest as the host sees it: HELLO, LOAD, then READY, COMPLETED or FAILED (see `naiad_stub.main`).

A start may take any time, as long as it makes progress: messages from the guest (PROGRESS every half second), or
processor time that the process used. A guest without either for `stub-timeout-seconds` hangs, and is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from naiad_stub import wire
from naiad_stub.messages import Completed, Failed, Hello, Progress, Ready, StartMessage, pack

from naiad.core.errors import Code, ModelError, ProtocolError, fresh
from naiad.guests.compat import assert_never
from naiad.guests.exchange import CODES
from naiad.guests.guest import GuestProcess
from naiad.guests.launch import LaunchSpec
from naiad.guests.process import PROGRESS_CHECK_SECONDS, ProgressMonitor


class GuestStartup:
    """One start."""

    def __init__(self, spec: LaunchSpec, process: GuestProcess, send: Callable[[bytes], None]) -> None:
        self.python = ""  # version of the guest's interpreter, once it has sent HELLO
        self.has_is_ready = False
        self._spec = spec
        self._process = process
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[str] = self._loop.create_future()
        self._progress = ProgressMonitor(spec.start_timeout, spec.processes.cpu_seconds)

    def on_message(self, message: StartMessage) -> None:
        self._progress.record(self._loop.time())
        if self._outcome.done():
            return
        match message:
            case Hello():
                self.python = message.python_version
                if message.protocol == wire.PROTOCOL_VERSION:
                    self._send(pack(self._spec.load.message()))
                else:
                    self._outcome.set_exception(
                        ProtocolError(
                            f"the stub {self._spec.stub} speaks protocol {message.protocol}, this server "
                            f"{wire.PROTOCOL_VERSION}: remove it or copy the one of this release"
                        )
                    )
            case Progress():
                pass
            case Ready():
                self.has_is_ready = message.has_is_ready
                self._outcome.set_result("")
            case Completed():
                self._outcome.set_result(message.config)
            case Failed():
                code = CODES[message.code] if message.code < len(CODES) else Code.INTERNAL
                self._outcome.set_exception(
                    ModelError(message.message, code=code, traceback_text=message.traceback_text)
                )
            case _:
                assert_never(message)

    async def wait(self) -> str:
        """Wait for the model; returns "", or the completed configuration as JSON if LOAD asked for that."""
        self._progress.start(self._process.pid, self._loop.time())
        exited = self._process.exited
        while True:
            waited: list[asyncio.Future[Any]] = [self._outcome, exited]
            await asyncio.wait(waited, timeout=PROGRESS_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._outcome.done():
                failure = self._outcome.exception()
                if failure is not None:
                    raise fresh(failure)
                config = self._outcome.result()
                # After READY an exit is a failure that no other code reports. After COMPLETED it is normal.
                if config or not exited.done():
                    return config
            if exited.done():
                raise self._process.exit_report("while it started")
            if self._progress.is_stalled(self._loop.time()):
                raise self._process.failure(
                    f"it made no progress for {self._spec.start_timeout:g} s while it started (stub-timeout-seconds) "
                    "and was killed."
                )
