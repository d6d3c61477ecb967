"""Which process listens at a port, for messages about ports that are taken."""

from __future__ import annotations

import contextlib

import psutil

__all__ = ["listener_at"]


def listener_at(port: int) -> str:
    """The process that listens at a TCP port, `process 4711 (naiad)`; "" if the system does not say which one.

    It says so of this user's processes alone, unless the user is root.
    """
    with contextlib.suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.pid and each.laddr and each.laddr.port == port and each.status == psutil.CONN_LISTEN:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return ""
