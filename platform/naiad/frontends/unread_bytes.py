"""What the kernel keeps of a connection: bytes that the event loop has not read, and those that the client has not."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios


def has_unread_bytes(transport: asyncio.Transport | None) -> bool:
    """Whether the kernel has received bytes on the transport's socket that were not read; False if it is closed.

    A connection that has some is not idle: a timer may run before the loop reads what arrived before it, most of all
    when the process had to wait for a processor. Closing a socket with unread bytes resets the connection, and the
    request is lost.
    """
    return bool(_queued(transport, termios.FIONREAD))


def unsent_bytes(transport: asyncio.Transport | None) -> int:
    """Bytes that were written to the transport and that the client's kernel has not acknowledged; 0 if it is closed.

    The kernel's part of them must be counted: it asks for more only when a third of its buffer, which may have
    4 MiB, is free. So a slow client seems to read nothing for minutes, and then a megabyte at once.
    """
    if transport is None:
        return 0
    # SIOCOUTQ of Linux has the number of TIOCOUTQ (tcp(7)).
    return transport.get_write_buffer_size() + _queued(transport, termios.TIOCOUTQ)


def _queued(transport: asyncio.Transport | None, request: int) -> int:
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None:
        return 0
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), request, bytes(4)))
    except (OSError, ValueError):  # the socket is closed
        return 0
    return int(count)
