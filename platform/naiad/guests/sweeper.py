"""Ends the whole process tree of each guest, by a sweeper process beside the host (`guests.sweeper_process`).

The kernel kills a guest when its host exits, and the host kills a guest's process group. Both leave processes that the
guest has started: the first all of them, the second those that called `setsid`. A separate process does the rest,
because only that remains when the host is killed, and because it reads /proc without holding up the event loop.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

logger = logging.getLogger("naiad.workers")

_SCRIPT = Path(__file__).with_name("sweeper_process.py")
_END_SECONDS = 5.0
_MAX_STARTS = 20


class ProcessSweeper:
    """The sweeper process of this host: started with the first guest, and again if it was killed.

    Thread-safe: servers of one Python process may have a loop, and so a thread, each.
    """

    def __init__(self) -> None:
        self._marker = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}  # of the guests that run, by id
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        os.register_at_fork(after_in_child=self._forget)

    def new_id(self) -> str:
        """An id for a guest or fork server that is to be started, for its variable NAIAD_GUEST_ID.

        Ids have equal lengths: a forked guest overwrites the part after the dot in place (`naiad_stub.forkserver`).
        """
        return f"{self._marker}-{next(self._numbers):06d}.000000"

    def watch(self, guest_id: str, name: str) -> None:
        with self._lock:
            self._names[guest_id] = name
            self._send()

    def on_exit(self, guest_id: str) -> None:
        with self._lock:
            name = self._names.pop(guest_id, None)
            if name is not None:
                self._send(f"{guest_id} {name}")

    def close(self) -> None:
        """End the process if no guest runs, after it has killed what is left. Blocks for some milliseconds."""
        with self._lock:
            if self._names or self._process is None:
                return
            process, self._process = self._process, None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _forget(self) -> None:
        """In a fork of the host: leave the process and the guests to the host."""
        self._lock = threading.Lock()
        self._marker = secrets.token_hex(8)
        self._names, self._process = {}, None

    def _send(self, command: str = "") -> None:
        """Send a command; start the process if it is not running. Holds the lock."""
        for _ in range(2):
            process = self._process or self._start()
            if process is None or not command:
                return
            try:
                os.write(process.stdin.fileno(), f"{command}\n".encode())  # type: ignore[union-attr]  # it is a pipe
            except OSError:  # it was killed, or stopped long ago
                self._process = None
                process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
                process.kill()
                process.wait()
            else:
                return

    def _start(self) -> subprocess.Popen[bytes] | None:
        if self._starts >= _MAX_STARTS or not Path("/proc/self/environ").exists():
            return None
        self._starts += 1
        arguments = [sys.executable, "-I", "-S", str(_SCRIPT), self._marker, str(os.getpid())]
        try:
            process = subprocess.Popen(
                arguments,
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the host
            )
        except OSError as error:
            self._starts = _MAX_STARTS
            logger.warning(
                "cannot start the process that ends what models leave behind: %s: %s; processes of models that leave "
                "their session may outlive them",
                sys.executable,
                error.strerror or error,
            )
            return None
        self._process = process
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        threading.Thread(target=self._report, args=(process,), name="naiad-sweeper", daemon=True).start()
        return process

    @staticmethod
    def _report(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                count, _, name = line.decode("utf-8", "replace").strip().partition(" ")
                logger.warning("'%s' left %s processes behind, which were killed", name, count)


sweeper = ProcessSweeper()  # the sweeper of this process
