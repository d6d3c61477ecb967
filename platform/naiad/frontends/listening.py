"""Listening sockets, closed without losing the connections that the kernel has accepted for them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.frontends.tls import listening_options

_SO_ATTACH_FILTER = 26  # Linux; the module `socket` has no name for it
_HANDSHAKE_SECONDS = 0.02  # for handshakes in progress: below 1 ms within a data centre
_TLS_SECONDS = 1.0  # time for the TLS handshakes of connections that waited in the backlog
_DROP_SYN = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte with TCP's flags
        (0x54, 0, 0, 0x12),  # keep SYN and ACK
        (0x15, 0, 1, 0x02),  # SYN alone?
        (0x06, 0, 0, 0),  # drop the packet
        (0x06, 0, 0, 0xFFFFFFFF),  # keep it
    )
)  # A program of classic BPF that drops the first packet of new connections. It begins at the TCP header.


class Acceptor(Protocol):
    """Accepts the connections of one listener, in place of its server; those of several processes share them."""

    has_port: bool  # whether this process has the listening sockets

    def begin(
        self,
        sockets: Sequence[socket.socket],
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Serve connections from now on, and accept those of *sockets*, which listen and are owned from now on."""

    def end(self) -> None:
        """Accept no more connections."""


def own_sockets(server: asyncio.Server) -> list[socket.socket]:
    """The listening sockets of a server that has not started to serve, for an `Acceptor`."""
    return [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]


async def close_listening(
    server: asyncio.Server,
    connect: Callable[[], asyncio.BaseProtocol],
    tls: ssl.SSLContext | None,
) -> None:
    """Close the sockets of *server*, and serve the connections that wait in their backlogs.

    The kernel completes handshakes without the process and resets what a closed socket has not accepted: behind a
    proxy, a request that is not sent again. So the kernel drops the SYN packets of new connections for a moment. Their
    clients send them again after a second. Then another server that shares the port (SO_REUSEPORT) gets them, or they
    are refused, upon which a proxy asks another server.
    """
    listening: list[socket.socket] = []
    accepted: list[socket.socket] = []
    try:
        # Without a file descriptor for a duplicate, none is left for a connection that waits either: it is reset.
        with contextlib.suppress(OSError):
            for each in server.sockets:
                duplicate = socket.socket(fileno=os.dup(each.fileno()))
                listening.append(duplicate)  # kept: those made before an error are closed, too
        for each in listening:
            each.setblocking(False)
            _drop_new_connections(each)
        server.close()  # the duplicates still listen
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        for each in listening:
            accepted += _accept_all(each)
    finally:
        for each in listening:
            each.close()
    loop = asyncio.get_running_loop()
    serving = [loop.connect_accepted_socket(connect, each, **listening_options(tls)) for each in accepted]
    # Errors concern one connection: its client has disconnected, or its TLS handshake failed.
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*serving, return_exceptions=True), _TLS_SECONDS)


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    accepted = []
    with contextlib.suppress(OSError):  # none is left, or no file descriptor is
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            accepted.append(connection)
    return accepted


def _drop_new_connections(listening: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    pointer = struct.pack("@HP", len(_DROP_SYN) // 8, ctypes.addressof(program))
    with contextlib.suppress(OSError):  # not on Linux, or forbidden: a few connections may be reset
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
