"""Whether a client has sent bytes that the event loop has not read yet: a connection that has some is not idle."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios


def has_unread_bytes(transport: asyncio.Transport | None) -> bool:
    """Whether the kernel has received bytes on the transport's socket that were not read; False if it is closed.

    A timer may run before the loop reads what arrived before it, most of all when the process had to wait for a
    processor. Closing a socket with unread bytes resets the connection, and the request is lost.
    """
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None:
        return False
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))
    except (OSError, ValueError):  # the socket is closed
        return False
    return bool(count)
