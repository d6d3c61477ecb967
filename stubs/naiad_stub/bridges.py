"""Bridges: memory in which long tensors go from guest to guest of two models, without a copy by the host.

The segments of a guest are mapped by that guest and the host alone, so the host copies what goes from one model to
another. A *bridge* is one more segment: one guest writes to it, and the guests of one loaded model read it. The host
makes it once long tensors go that way. It passes the descriptor over a socket that carries descriptors alone, since the
channel is read without them. No other model maps a bridge, so none sees what is not sent to it.

The guest that writes allocates in a bridge as it does in its output segment, and the host returns blocks in the same
message. Numbers of blocks have the bridge's number above BRIDGE_SHIFT; 0 there is the guest's own segment. Where a
guest cannot map a bridge, tensors are copied as before.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from typing import Dict, Optional, Tuple

from naiad_stub.channel import Channel
from naiad_stub.messages import BridgeOpened, CloseBridge, OpenBridge, UseBridge, pack
from naiad_stub.primitives import Socket, allocate_lock
from naiad_stub.segment import Segment
from naiad_stub.wire import BRIDGE_OFFSETS, BRIDGE_SHIFT

_NONE = -1


class Bridges:
    """The bridges of this guest."""

    def __init__(self, sock: Socket, channel: Channel) -> None:
        """None yet.

        Args:
            sock: Receives their descriptors.
            channel: Receives the messages about them.
        """
        self._socket = sock
        self._channel = channel
        self._lock = allocate_lock()
        self._written: Dict[int, Segment] = {}
        self._read: Dict[int, Segment] = {}
        self._by_model: Dict[Tuple[str, int], int] = {}
        channel.add_handler(OpenBridge, self._on_open)
        channel.add_handler(UseBridge, self._on_use)
        channel.add_handler(CloseBridge, self._on_close)

    def number_to(self, model: str, version: int) -> int:
        """The bridge to a model that this one calls; 0 without one."""
        return self._by_model.get((model, version), 0) if self._by_model else 0

    def allocate(self, number: int, size: int) -> Optional[Tuple[int, memoryview, int]]:
        """A block of a bridge: its number, the bridge's memory, and where the block begins there. None without room."""
        with self._lock:
            segment = self._written.get(number)
            if segment is None:
                return None
            offset = segment.allocate(size)
            return None if offset < 0 else (number << BRIDGE_SHIFT | offset, segment.view, offset)

    def release(self, block: int) -> None:
        """Free a block; nothing if its bridge is closed."""
        with self._lock:
            segment = self._written.get(block >> BRIDGE_SHIFT)
            if segment is not None:
                segment.release(block & BRIDGE_OFFSETS)

    def view(self, number: int) -> memoryview:
        """The memory of a bridge that this guest reads."""
        return self._read[number].view

    def trim(self) -> None:
        """Return free pages to the system."""
        with self._lock:
            for segment in self._written.values():
                segment.trim()

    def detach(self) -> None:
        """In a child that the model forked: allocate nothing."""
        self._lock = allocate_lock()  # another thread of the parent may have held it
        self._written = {}
        self._by_model = {}

    # -- messages -----------------------------------------------------------------------------------------------

    def _on_open(self, message: OpenBridge) -> None:
        descriptor = self._receive()
        if descriptor == _NONE:
            return
        try:
            segment = Segment(descriptor, message.capacity)
        except (OSError, ValueError, OverflowError, MemoryError):
            return  # a limit on address space, such as memory_limit; the host does not use it either
        finally:
            os.close(descriptor)
        if message.is_written:
            with self._lock:
                self._written[message.number] = segment
        else:
            self._read[message.number] = segment
            self._channel.post(pack(BridgeOpened(message.number)))

    def _on_use(self, message: UseBridge) -> None:
        if message.number in self._written:
            self._by_model[message.model, message.version[0]] = message.number

    def _on_close(self, message: CloseBridge) -> None:
        with self._lock:
            written = self._written.pop(message.number, None)
            for model in [each for each, number in self._by_model.items() if number == message.number]:
                del self._by_model[model]
        read = self._read.pop(message.number, None)
        for segment in (written, read):
            if segment is not None:
                segment.close()  # parts that the model refers to stay valid

    def _receive(self) -> int:
        """The descriptor of a bridge, which was sent before the message; -1 where the model has closed the socket."""
        descriptors = array.array("i")
        try:
            _, ancillary, _, _ = self._socket.recvmsg(
                1, socket.CMSG_SPACE(descriptors.itemsize), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
        except OSError:
            return _NONE
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        for extra in descriptors[1:]:
            with contextlib.suppress(OSError):
                os.close(extra)
        return descriptors[0] if descriptors else _NONE
