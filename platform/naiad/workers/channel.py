"""The host's end of a guest's socket: frames in and out, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from naiad_stub import wire

_RECEIVE = 1 << 16


class Channel:
    """Frames over a non-blocking stream socket on an event loop.

    Attributes:
        was_cut: Whether the guest went without having read all that was sent to it: the system says so with a reset.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[int, bytes], None],
        ended: Callable[[str], None],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Start reading *sock*.

        Args:
            sock: Owned from now on.
            loop: The loop whose thread calls everything here.
            take: Called with kind and payload of each frame; may raise to stop reading.
            ended: Called once with the reason, when the guest has closed its end or sends what nobody can read.
            beat: Called whenever something is sent or received.
        """
        self._socket: socket.socket | None = sock
        self._loop = loop
        self._take = take
        self._ended = ended
        self._beat = beat
        self.was_cut = self._is_broken = False
        self._reader = wire.FrameReader()
        # A buffer of its own: socket.recv(n) makes one of n bytes each time, which costs three system calls.
        self._buffer = bytearray(_RECEIVE)
        self._view = memoryview(self._buffer)
        self._outgoing = bytearray()
        self._soon: list[bytes] = []
        loop.add_reader(sock, self._readable)

    def send(self, data: bytes) -> None:
        """Send whole frames, now or as soon as the socket takes them. To a guest that is gone: do nothing."""
        if self._soon:
            self._soon.append(data)  # never overtake
            return
        self._write(data)

    def _flush(self) -> None:
        soon, self._soon = self._soon, []
        self._write(soon[0] if len(soon) == 1 else b"".join(soon))

    def _write(self, data: bytes) -> None:
        if self._outgoing:
            self._outgoing += data
            return
        if self._socket is None:
            return
        self._beat()
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the end of the process is on its way to us
        if sent < len(data):
            self._outgoing += data[sent:]
            self._loop.add_writer(self._socket, self._writable)

    def send_soon(self, data: bytes) -> None:
        """Send whole frames at the end of the loop's turn, in one call with all others of that turn.

        For a guest that is busy: it would not look at them sooner, and each call costs as much as a request's codecs.
        """
        if not self._soon:
            self._loop.call_soon(self._flush)
        self._soon.append(data)

    def drain(self) -> None:
        """Read what has arrived by now."""
        while self._socket is not None and not self._is_broken and self._read():
            pass

    def close(self) -> None:
        """Stop reading and close the socket."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    def _writable(self) -> None:
        if self._socket is None:
            return
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outgoing)
        del self._outgoing[:sent]
        if not self._outgoing:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        if self._socket is not None:
            self._read()

    def _read(self) -> bool:
        assert self._socket is not None
        self._beat()
        try:
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            self.was_cut = True
            size = 0
        if not size:
            self._loop.remove_reader(self._socket)
            self._ended("it closed its channel")
            return False
        try:
            frames = self._reader.feed(bytes(self._view[:size]))
        except wire.WireError as error:
            self._loop.remove_reader(self._socket)
            self._is_broken = True
            self._ended(f"it broke the protocol: {error}")
            return False
        for kind, payload in frames:
            self._take(kind, payload)
        return True
