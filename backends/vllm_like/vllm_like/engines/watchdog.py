"""Kills the processes that an engine has started when this process exits, even if it is killed.

The server kills the process group of a guest that exits. If the server itself is killed, the kernel kills the guest
only (`PR_SET_PDEATHSIG`). So a small watchdog process waits for the guest's exit, which closes its stdin, and then
kills the group.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Optional

_SCRIPT = """
import os, signal, sys
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except (ProcessLookupError, PermissionError):
    pass
"""
_started: Optional[subprocess.Popen[bytes]] = None


def start() -> None:
    """Start the watchdog, unless this process does not lead its process group: the group then has other owners."""
    global _started  # noqa: PLW0603 - one for the process; the object keeps the pipe open
    if _started is not None or os.getpgrp() != os.getpid():
        return
    # In its own session, so that it is not killed together with the group.
    _started = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SCRIPT, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True
    )
