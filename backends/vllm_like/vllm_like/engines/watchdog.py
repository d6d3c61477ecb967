"""Has the processes that an engine starts end with this one, also where it is killed.

The server kills the whole group of a guest that ends. Where the server itself is killed, the kernel kills the guest
alone: so a small process waits for the guest's end and then kills the group.
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
    """Watch over this process's group, if it leads one: another's group is another's matter."""
    global _started  # noqa: PLW0603 - one for the process, and the object has to live as long
    if _started is not None or os.getpgrp() != os.getpid():
        return
    # Its own session: it must not be killed with the group before it has done its work.
    _started = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SCRIPT, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True
    )
