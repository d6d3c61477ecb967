"""Starts processes beside the coordinator, also before they are needed: they import their modules while models load."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections import deque
from typing import NamedTuple

from naiad.core.child_processes import start_own_code


class SpawnedProcess(NamedTuple):
    """A process that waits for its first message, its configuration, and ends when *socket*, this end, is closed."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


class SpawnedProcesses:
    """Processes that were started and have nothing to serve yet."""

    def __init__(self) -> None:
        self._waiting: deque[SpawnedProcess] = deque()
        self._is_closed = False

    def spawn(self, count: int) -> None:
        """Start *count* processes for later; none after `close`."""
        for _ in range(0 if self._is_closed else count):
            self._waiting.append(_spawn())

    def take(self) -> SpawnedProcess:
        """A process that the caller ends: the oldest that waits, else a new one."""
        return self._waiting.popleft() if self._waiting else _spawn()

    async def close(self) -> None:
        self._is_closed = True
        while self._waiting:
            spawned = self._waiting.popleft()
            spawned.socket.close()
            spawned.process.kill()
            await asyncio.to_thread(spawned.process.wait)


def _spawn() -> SpawnedProcess:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    main = "naiad.server.further_process:main"
    try:
        process = start_own_code(main, other.fileno(), os.environ, title=["naiad-process"])
    except BaseException:
        own.close()
        raise
    finally:
        other.close()
    return SpawnedProcess(process, own)
