"""The process of one guest: its start, what it prints, its end. Everything runs on the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from naiad_stub.wire import MEMORY_LIMIT_STATUS

from naiad.config.model.parameters import MEMORY_LIMIT
from naiad.core.errors import GuestExitedError
from naiad.guests.launch import GuestSockets, LaunchedGuest, LaunchSpec
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.output import GuestLog, LineReader, describe_dropped
from naiad.guests.process import describe_exit

logger = logging.getLogger("naiad.workers")


class GuestProcess:
    """One guest process."""

    def __init__(self, spec: LaunchSpec, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = 0
        self.exited: asyncio.Future[int] = loop.create_future()
        self.kill_reason = ""
        self.log = GuestLog(spec.log_rate, self._on_lines_dropped, loop)
        self._spec = spec
        self._loop = loop
        self._processes = spec.processes
        self._launched: LaunchedGuest | None = None
        self._is_reaped = False  # from then on its id may be another process's
        self._lines: list[LineReader] = []
        self._on_exit: Callable[[int], None] | None = None

    @property
    def is_running(self) -> bool:
        return self._launched is not None and not self.exited.done()

    async def spawn(
        self, memory: InstanceMemory, on_line: Callable[[str, str], None], on_exit: Callable[[int], None]
    ) -> GuestSockets:
        """Start it; returns the host's ends of its sockets. *on_exit* gets its exit status, before `exited` is set."""
        self._launched = launched = await self._processes.launch(self._spec, memory)
        self._on_exit = on_exit
        self.pid = launched.pid
        self._lines = [
            LineReader(pipe, lambda line, name=name: on_line(name, line), self.log, self._loop)  # type: ignore[misc]  # mypy cannot infer a lambda with a default value
            for name, pipe in launched.output
        ]
        self._processes.watch(launched, self._reap)
        return launched.sockets

    def kill(self) -> None:
        if self.pid and not self._is_reaped:
            self._processes.kill(self.pid)

    def send_signal(self, number: int) -> None:
        if self.pid and not self._is_reaped:
            self._processes.send_signal(self.pid, number)

    def close(self) -> None:
        for lines in self._lines:
            lines.close()
        self.log.close()

    def exit_report(self, when: str = "") -> GuestExitedError:
        """The error for requests that needed it: how it ended, and its last lines on stderr."""
        status = self.exited.result() if self.exited.done() else None
        self.close()
        end = f"pid {self.pid} was killed: {self.kill_reason}" if self.kill_reason else describe_exit(self.pid, status)
        when = f" {when}" if when else ""
        return self.failure(f"{end}{when}.", status)

    def failure(self, problem: str, status: int | None = None) -> GuestExitedError:
        lines = tuple(self._lines[1].last_lines) if len(self._lines) > 1 else ()
        words = " Its last lines on stderr:\n" + "\n".join(lines) if lines else ""
        problem = f"Stub process '{self._spec.name}' is not healthy. Reason: {problem}"
        return GuestExitedError(problem + words, exit_status=status, last_lines=lines, problem=problem)

    def _on_lines_dropped(self, lines: int, size: int) -> None:
        logger.warning(
            "'%s' (pid %d): %s", self._spec.name, self.pid, describe_dropped(lines, size, self._spec.log_rate)
        )

    def _reap(self) -> None:
        assert self._launched is not None
        self._is_reaped = True
        self._launched.reap(self._on_reaped)

    def _on_reaped(self, status: int, reason: str) -> None:
        assert self._on_exit is not None
        if not self.kill_reason and self._spec.memory_limit and status == MEMORY_LIMIT_STATUS:
            reason = f"exceeded {MEMORY_LIMIT} {self._spec.memory_limit.text}"
        self.kill_reason = self.kill_reason or reason
        if not self.exited.done():
            self._on_exit(status)
