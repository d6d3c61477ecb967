"""Why a port cannot be opened, for messages: which process listens there, if it is taken."""

from __future__ import annotations

import contextlib
import errno

import psutil


def listen_failure(problem: OSError, port: int) -> str:
    """What *problem* says of a TCP port that cannot be opened, and of one that is taken which process listens there.

    The system says that of this user's processes alone, unless the user is root.
    """
    cause = problem.strerror or str(problem)
    if problem.errno == errno.EADDRINUSE and (listener := _listener_at(port)):
        return f"{cause} by {listener}"
    return cause


def _listener_at(port: int) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.pid and each.laddr and each.laddr.port == port and each.status == psutil.CONN_LISTEN:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return ""
