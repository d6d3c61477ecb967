"""The host's end of a guest's socket: frames in and out, without ever blocking the event loop.

One read may bring hundreds of responses, and each costs what its client's frontend does with it. So the frames of a
guest are handled for a share of the turn (see `turns.py`), and the rest later. Nothing is read until they are handled.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from naiad_stub import wire

from naiad.core import clock
from naiad.core.turns import SHARE_SECONDS, turns_of

_RECEIVE = 1 << 16


class Channel:
    """Frames over a non-blocking stream socket on an event loop."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[int, bytes], None],
        on_end: Callable[[str], None],
        on_activity: Callable[[], None] = lambda: None,
    ) -> None:
        """Start reading *sock*; *on_end* gets the reason when the guest closes its end or sends a malformed frame."""
        self._socket: socket.socket | None = sock
        self._loop = loop
        self.on_frame = on_frame  # called with kind and payload of each frame; may raise to stop reading
        self._on_end = on_end
        self._on_activity = on_activity
        # The guest closed its end with unread data in it: the kernel reports that as a reset.
        self.was_cut = self.is_broken = False
        self._reader = wire.FrameReader(wire.MAX_GUEST_FRAME, {wire.Kind.QUERY: wire.MAX_QUERY})
        # One buffer for all reads: socket.recv(n) allocates n bytes each time, which costs three system calls.
        self._buffer = bytearray(_RECEIVE)
        self._view = memoryview(self._buffer)
        self._turns = turns_of(loop)
        self._frames: deque[tuple[int, bytes]] = deque()  # that were read and wait for a later turn
        self._on_drained: Callable[[], None] | None = None
        self._outgoing = bytearray()
        self._soon: list[bytes] = []
        loop.add_reader(sock, self._readable)

    def send(self, data: bytes) -> None:
        """Send whole frames, now or as soon as the socket takes them; nothing if the guest is gone."""
        if self._soon:
            self._soon.append(data)  # in order
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
        self._on_activity()
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The process has ended, which its pidfd reports next, or has closed its end, which the next read reports:
            # libuv may have reported that already, when there was still something else to read, and never does again.
            self._loop.call_soon(self._readable)
            return
        if sent < len(data):
            self._outgoing += data[sent:]
            self._loop.add_writer(self._socket, self._writable)

    def send_soon(self, data: bytes) -> None:
        """Send whole frames at the end of the loop's turn, in one system call with all others of that turn.

        For a guest that is busy, and so does not read them sooner: one system call costs as much time as encoding a
        request.
        """
        if not self._soon:
            self._loop.call_soon(self._flush)
        self._soon.append(data)

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Handle all frames that have arrived by now, and then call *on_drained*: at once, or in a later turn."""
        self._on_drained = on_drained
        self._drain()

    def _drain(self) -> None:
        deadline = clock.perf_counter() + SHARE_SECONDS
        while not self._frames and self._socket is not None and not self.is_broken and self._read():
            if clock.perf_counter() >= deadline and not self._frames:
                self._turns.defer(self._drain)
                return
        if not self._frames:  # else these are handled first, and `_resume` continues
            on_drained, self._on_drained = self._on_drained, None
            if on_drained is not None:
                on_drained()

    def close(self) -> None:
        self._frames.clear()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
            # The callbacks refer to what refers to this object: such a cycle is freed late.
            self._buffer, self._view = bytearray(), memoryview(b"")

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
        if self._socket is not None and not self._frames:
            self._read()

    def _read(self) -> bool:
        assert self._socket is not None
        self._on_activity()
        try:
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            self.was_cut = True
            size = 0
        if not size:
            self._loop.remove_reader(self._socket)
            self._on_end("it closed its channel")
            return False
        try:
            frames = self._reader.feed(bytes(self._view[:size]))
        except wire.WireError as error:
            self._loop.remove_reader(self._socket)
            self.is_broken = True
            self._on_end(f"it broke the protocol: {error}")
            return False
        if len(frames) == 1:  # most reads
            self.on_frame(*frames[0])
        elif frames:
            self._frames.extend(frames)
            self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        frames = self._frames
        deadline = 0.0
        while frames:
            self.on_frame(*frames.popleft())
            if frames:
                now = clock.perf_counter()
                if not deadline:
                    deadline = now + SHARE_SECONDS
                elif now >= deadline:
                    self._turns.defer(self._resume)
                    return

    def _resume(self) -> None:
        self._handle_frames()
        if not self._frames and self._on_drained is not None:
            self._drain()
