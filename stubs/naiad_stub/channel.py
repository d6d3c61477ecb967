"""The guest's end of the socket: whole messages in, whole messages out, from any thread.

The thread that waits for messages is the thread that runs the model, so nothing polls. Frames read while looking for
something else are kept in order for whoever asks next.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Callable, Optional

from naiad_stub import wire

_RECEIVE = 1 << 16


class HostGoneError(Exception):
    """The host closed the socket: there is nobody left to serve."""


class Channel:
    """Frames over a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = wire.FrameReader()
        self._frames: deque[tuple[int, bytes]] = deque()
        # A buffer of its own: socket.recv(n) makes one of n bytes each time, which costs three system calls.
        self._buffer = bytearray(_RECEIVE)
        self._view = memoryview(self._buffer)
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Send one or more whole frames.

        Raises:
            HostGoneError: If the host has closed its end.
        """
        with self._send_lock:
            try:
                self._socket.sendall(data)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise HostGoneError from error

    def receive(self) -> tuple[int, bytes]:
        """Wait for the next frame.

        Raises:
            HostGoneError: If the host has closed its end.
        """
        with self._receive_lock:
            while not self._frames:
                self._read(0)
            return self._frames.popleft()

    def receive_only(self, kind: int) -> bytes:
        """Wait for the next frame of one kind; frames of other kinds stay queued in their order."""
        with self._receive_lock:
            passed: deque[tuple[int, bytes]] = deque()
            try:
                while True:
                    while self._frames:
                        frame = self._frames.popleft()
                        if frame[0] == kind:
                            return frame[1]
                        passed.append(frame)
                    self._read(0)
            finally:
                passed.extend(self._frames)
                self._frames = passed

    def receive_more(self) -> None:
        """Wait until more has arrived than is queued."""
        with self._receive_lock:
            self._read(0)

    def change_queued(self, change: Callable[[int, bytes], Optional[bytes]]) -> None:
        """Put what *change* returns for kind and payload of each queued frame in its place; None takes it out."""
        with self._receive_lock:
            changed = [(kind, change(kind, payload)) for kind, payload in self._frames]
            self._frames = deque((kind, payload) for kind, payload in changed if payload is not None)

    def take_arrived(self, kind: int) -> list[bytes]:
        """Frames of one kind that have arrived by now; never waits, also not for another thread that reads."""
        if not self._receive_lock.acquire(blocking=False):
            return []
        try:
            while self._read(socket.MSG_DONTWAIT):
                pass
            taken = [payload for found, payload in self._frames if found == kind]
            if taken:
                self._frames = deque(frame for frame in self._frames if frame[0] != kind)
            return taken
        finally:
            self._receive_lock.release()

    def _read(self, flags: int) -> bool:
        try:
            size = self._socket.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            return False
        except ConnectionResetError as error:
            raise HostGoneError from error
        if not size:
            raise HostGoneError
        self._frames.extend(self._reader.feed(bytes(self._view[:size])))
        return True
