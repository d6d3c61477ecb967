"""One end of the socket between two processes of a server: frames with descriptors, in order, never blocking.

All frames of one turn of the event loop leave in one system call, at the turn's end. Those that only free memory wait a
moment for others, since each call also wakes the other process.

A frame with a tensor may have any size. A long one is neither joined nor split: its parts are sent as they are, and its
payload is received into memory of its own, both in pieces, for a share of each turn.

What was read is handled for a share of the turn (see `turns.py`), and the rest later. Nothing is read until it is
handled, unless its handler waits for an answer, while urgent frames alone are handled. Then the socket is read until
nothing is there: a process that was killed before it had read everything leaves an error on it, which libuv reports
once and never again.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from naiad_stub import wire

from naiad.core import clock
from naiad.core.turns import SHARE_SECONDS, turns_of
from naiad.frontends.growing_bytes import new_bytes
from naiad.protocol.inference import Buffer
from naiad.server.processes.messages import MAX_FRAME

# The content of a frame; a view of a long one, so that its tensors need not be copied.
Payload: TypeAlias = "bytes | memoryview"

_RECEIVE = 1 << 17
LONG_FRAME = 1 << 18  # Payloads of more bytes are received into memory of their own. A copy of as many takes 0.1 ms.
# Bytes that are sent at a time. The receiver makes room at the same time, so that one call could send any number.
_PIECE = 1 << 18
_MAX_DESCRIPTORS = 64
_LAZY_SECONDS = 0.001
_ANCILLARY = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array("i").itemsize)


class Link:
    """Frames over a stream socket."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[int, Payload], None],
        on_end: Callable[[], None],
        is_urgent: Callable[[int, Payload], bool] = lambda *_: True,
    ) -> None:
        """Start reading *sock*, of the family AF_UNIX, which is owned from now on, on *loop*, whose thread calls this.

        *on_frame* gets the kind and payload of each frame, in order. It may call `receive`, during which it gets those
        that *is_urgent* names; it never raises. *on_end* is called once, when the other side has closed its end.
        """
        sock.setblocking(False)
        # That came with frames, in order; the handler of such a frame takes its descriptor.
        self.descriptors: deque[int] = deque()
        self._socket: socket.socket | None = sock
        self._loop = loop
        self._thread = threading.get_ident()
        self._on_frame = on_frame
        self._on_end = on_end
        self._is_urgent = is_urgent
        self._reader = wire.FrameReader(MAX_FRAME)
        self._frames: deque[tuple[int, Payload]] = deque()  # that have arrived and are not handled yet
        self._long: tuple[int, memoryview] | None = None  # kind and payload of a long frame that is being received
        self._long_filled = 0  # bytes of it that have arrived
        self._turns = turns_of(loop)
        self._is_resuming = False  # what has arrived is handled in a later turn
        self._buffer = bytearray(_RECEIVE)
        self._buffers = (self._buffer,)
        self._view = memoryview(self._buffer)
        self._soon: list[bytes] = []
        self._lazy: list[bytes] = []
        self._lazy_flush: asyncio.TimerHandle | None = None
        self._outgoing: deque[tuple[memoryview, int | None]] = deque()  # what the socket did not take, with descriptors
        loop.add_reader(sock, self._readable)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def has_backlog(self) -> bool:
        """Whether the socket has not taken everything that was sent."""
        return bool(self._outgoing)

    # -- out ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if not self._soon:
            self._loop.call_soon(self.flush)
        self._soon.append(data)

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Send whole frames that are in *parts*. Those of a long one must not change until it is sent."""
        if sum(map(len, parts)) <= LONG_FRAME:
            self.send(b"".join(parts))
            return
        self.flush()
        if self._socket is not None:
            self._outgoing += [(memoryview(part), None) for part in parts if len(part)]
            self._loop.add_writer(self._socket, self._write)

    def send_lazily(self, data: bytes) -> None:
        """Send whole frames that only free memory: with the next ones, or after a millisecond without further ones.

        Any thread may call this, also when the link is closed: it is called where the last reference is dropped.
        """
        if not self.is_open:
            return
        if threading.get_ident() != self._thread:  # rarely; waking the loop takes two system calls
            self._loop.call_soon_threadsafe(self.send_lazily, data)
            return
        self._lazy.append(data)
        if self._lazy_flush is None:
            self._lazy_flush = self._loop.call_later(_LAZY_SECONDS, self._flush_lazy)

    def _flush_lazy(self) -> None:
        self._lazy_flush = None
        self.flush()

    def send_descriptor(self, data: bytes, descriptor: int) -> None:
        """Send one frame with a descriptor, which is duplicated."""
        self.flush()
        if self._socket is None:
            return
        self._outgoing.append((memoryview(data), os.dup(descriptor)))
        self._loop.add_writer(self._socket, self._write)
        self._write()

    def flush(self) -> None:
        """Send what has been collected, as far as the socket takes it."""
        soon = self._soon
        if self._lazy:
            # Taken before anything else is made: the collection of garbage may add to the list at any time.
            lazy, self._lazy = self._lazy, []
            soon = lazy + soon  # first: these free memory that what follows may need
        if not soon:
            return
        self._soon = []
        data = soon[0] if len(soon) == 1 else b"".join(soon)
        if self._socket is None:
            return
        if not self._outgoing:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the other process has exited, which the next read reports
            if sent == len(data):
                return
            self._loop.add_writer(self._socket, self._write)
            self._outgoing.append((memoryview(data)[sent:], None))
        else:
            self._outgoing.append((memoryview(data), None))

    def _write(self) -> None:
        sock, outgoing = self._socket, self._outgoing
        if sock is None:
            return
        deadline = clock.perf_counter() + SHARE_SECONDS
        while outgoing:
            data, descriptor = outgoing[0]
            ancillary = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
            try:
                sent = sock.sendmsg([data[:_PIECE]], ancillary)
            except BlockingIOError:
                return
            except OSError:
                sent = len(data)
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(data):
                outgoing[0] = (data[sent:], None)
            else:
                outgoing.popleft()
            if outgoing and clock.perf_counter() >= deadline:
                return
        self._loop.remove_writer(sock)

    # -- in -------------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = 0) -> bool:
        """Handle the urgent ones of the frames that have arrived, and the others later; whether any have arrived.

        It waits *timeout* seconds for the first, or any time with None. Meanwhile what is queued is sent.
        """
        sock = self._socket
        if sock is None:
            return False
        self._handle_urgent()
        if timeout != 0:
            self.flush()
            poll = select.poll()
            poll.register(sock, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            poll.poll(None if timeout is None else timeout * 1000)
            if self._outgoing:
                self._write()
        if not self._receive():
            return False
        self._handle_urgent()
        return True

    def _readable(self) -> None:
        if not self._frames:
            self._read_share()

    def _receive(self) -> bool:
        """Read what has arrived; whether anything has."""
        sock = self._socket
        if sock is None:
            return False
        long = self._long
        buffers = self._buffers if long is None else (long[1][self._long_filled : self._long_filled + _RECEIVE],)
        try:
            size, ancillary, _, _ = sock.recvmsg_into(buffers, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            size, ancillary = 0, []
        for _, _, content in ancillary:
            self.descriptors.extend(array("i", content))
        if not size:
            self.close()
            self._on_end()
            return False
        if long is None:
            self._frames += self._reader.feed(bytes(self._view[:size]))
            self._begin_long()
        else:
            self._long_filled += size
            if self._long_filled == len(long[1]):
                self._frames.append(long)
                self._long = None
        return True

    def _begin_long(self) -> None:
        """If the last frame has not arrived to its end, and is long, receive the rest of it into its own memory."""
        found = self._reader.take_long(LONG_FRAME)
        if found is not None:
            kind, size, begun = found
            payload = memoryview(new_bytes(size))
            payload[: len(begun)] = begun
            self._long, self._long_filled = (kind, payload), len(begun)

    def _read_share(self) -> None:
        """Handle what was read, and read on until nothing is there, for a share of the turn."""
        frames = self._frames
        deadline = 0.0
        while frames or self._receive():
            if frames:  # else a part of one was read
                self._on_frame(*frames.popleft())
            if not deadline:
                deadline = clock.perf_counter() + SHARE_SECONDS
            elif clock.perf_counter() >= deadline:
                self._resume_later()
                break

    def _handle_urgent(self) -> None:
        """Handle the urgent ones of the frames that were read, and keep the others in their order."""
        frames = list(self._frames)
        self._frames.clear()
        for frame in frames:
            if self._is_urgent(*frame):
                self._on_frame(*frame)
            else:
                self._frames.append(frame)
        if self._frames:
            self._resume_later()

    def _resume_later(self) -> None:
        if not self._is_resuming:
            self._is_resuming = True
            self._turns.defer(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        self._read_share()

    def close(self) -> None:
        """Close the socket, and the descriptors that no handler has taken."""
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._socket = None
        for _, descriptor in self._outgoing:
            if descriptor is not None:
                os.close(descriptor)
        self._outgoing.clear()
        self._frames.clear()
        self._long = None
        while self.descriptors:
            os.close(self.descriptors.popleft())
