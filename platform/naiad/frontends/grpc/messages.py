"""Length-prefixed messages on a stream: five bytes (a flag for compression, the length) before each.

Long messages are received into buffers of their exact size, which are used again for later ones. Memory that was never
touched costs a page fault for each 4 KiB, more than everything else that is done with such a message.

A method may have a better place for a long message once it has seen the beginning, such as the memory of the process
that will read its tensors (`Reserve`). As with bodies of HTTP (`http1.long_body`), the place is taken for a client that
has shown that it sends: by an eighth of this message, or by an earlier one of at least half its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from naiad.frontends.growing_bytes import new_bytes, resize_bytes
from naiad.frontends.http1.compression import compress
from naiad.frontends.http1.long_body import trusted_size
from naiad.frontends.request_budget import too_long_for_budget
from naiad.frontends.status import GrpcStatus
from naiad.protocol.inference import Buffer

PREFIX = struct.Struct(">BL")
PREFIX_SIZE = 5
MAX_MESSAGE_SIZE = 2**31 - 1  # bytes of a message: gRPC's own limit, and the reference's

_POOLED_FROM = 1 << 16  # messages from this size are received into pooled buffers
_POOL_SIZE = 1 << 26  # bytes of all pooled buffers together
_INITIAL_ALLOCATION = 1 << 16
"""Bytes that are allocated for a message before any of it has arrived. The length is the client's claim: 300 streams
that announce 2 GiB each in five bytes must cost little."""
_GROWTH = 8  # factor by which a buffer grows when it is full: at most an eighth of a message is copied once more
_IDLE_TICKS = 10
_COMPRESSED_FROM = 1 << 8  # shorter messages hardly shrink

RESERVED_FROM = 1 << 17  # longer messages may get a place of their own: looking for it costs what a copy of these does
_LEAST_HEAD = 1 << 12  # bytes of a message that arrive before its place is asked for: they name model and tensors
_MOST_COPIED = 1 << 22
"""Bytes of a message that are copied to its place. If more have arrived, the message stays where it is: the copy would
hold the event loop."""

Encoding = Literal["identity", "deflate", "gzip"]
Message = bytes | bytearray | memoryview
Reserve = Callable[[memoryview, int], memoryview | None]
"""Returns a place for a message, by its first bytes and its size; None to have it in a buffer."""


class CompressedMessage(NamedTuple):
    """A message that its client has compressed."""

    data: Message


class MessageError(Exception):
    """The content of a stream is not a sequence of messages. It ends the call."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class BufferPool:
    """Buffers of earlier messages. A buffer that is still referred to is never given out again."""

    def __init__(self, on_kept: Callable[[], None] = lambda: None) -> None:
        """An empty pool; *on_kept* is called when a buffer is kept: call `on_tick` from then on until it is False."""
        self._on_kept = on_kept
        self._buffers: dict[int, list[bytearray]] = {}
        self._size = 0
        self._idle_ticks = 0

    def on_tick(self) -> bool:
        """Free the buffers if none was taken or kept for ten ticks; return whether any is kept."""
        self._idle_ticks += 1
        if self._idle_ticks > _IDLE_TICKS:
            self._buffers.clear()
            self._size = 0
        return self._size > 0

    def take(self, size: int) -> bytearray | None:
        """A buffer of exactly *size* bytes, if there is one."""
        self._idle_ticks = 0
        pooled = self._buffers.get(size)
        while pooled:
            buffer = pooled.pop()
            self._size -= size
            try:
                # CPython refuses to resize a bytearray that has views, for instance a tensor that a model keeps.
                # Growing by one byte and back allocates nothing: `MessageReader` leaves room for it.
                buffer.append(0)
                buffer.pop()
            except BufferError:
                continue
            return buffer
        return None

    def put(self, buffer: Message) -> None:
        """Keep the buffer of a message that was handled, if its kind and size are pooled."""
        size = len(buffer)
        if not isinstance(buffer, bytearray) or not _POOLED_FROM <= size <= _POOL_SIZE:
            return
        if self._size + size > _POOL_SIZE:
            self._buffers.clear()
            self._size = 0
        self._buffers.setdefault(size, []).append(buffer)
        self._size += size
        self._idle_ticks = 0
        self._on_kept()


@dataclass(slots=True, eq=False)
class MessageReader:
    """Assembles the messages of one stream from its content."""

    _encoding: Encoding
    _pool: BufferPool
    _budget: int = MAX_MESSAGE_SIZE  # bytes of all messages in flight together; longer messages are rejected
    is_single: bool = field(default=False, kw_only=True)  # ignores what follows the message: thousands fit into a frame
    reserve: Reserve | None = field(default=None, kw_only=True)  # has places for long messages; None without such
    longest: int = field(default=0, kw_only=True)  # bytes of the longest message that the client has sent before
    # The bytes of an incomplete prefix; then the flag and size of the message, its buffer, and how much is there.
    _prefix: bytes = b""
    _body: bytearray | memoryview | None = None
    _flag: int = 0
    _size: int = 0
    _filled: int = 0
    _may_reserve: bool = False  # a place for the incomplete message, which has none yet
    _pooled_size: int = 0  # of a buffer that an earlier message has written to
    _has_all: bool = False  # the only message is complete

    @property
    def is_within_message(self) -> bool:
        return bool(self._prefix) or self._body is not None

    @property
    def held_size(self) -> int:
        """Bytes of memory that the incomplete message uses."""
        return 0 if self._body is None else max(self._filled, self._pooled_size)

    def feed(self, data: Buffer, start: int, end: int) -> list[Message | CompressedMessage]:
        """Read content; return the messages that it completes. Raises MessageError if it is malformed."""
        messages: list[Message | CompressedMessage] = []
        while start < end and not self._has_all:
            if self._body is None:
                start = self._begin_message(data, start, end, messages)
            else:
                size = min(end - start, self._size - self._filled)
                self._reserve(size)
                self._body[self._filled : self._filled + size] = memoryview(data)[start : start + size]
                start += size
                messages += self.buffer_updated(size)
        return messages

    def get_buffer(self, size: int) -> memoryview | None:
        """A buffer for up to *size* bytes of content; None outside of a message."""
        if self._body is None or self._filled == self._size:
            return None
        if self._filled == len(self._body):
            self._reserve(1)
        return memoryview(self._body)[self._filled : self._filled + size]

    def buffer_updated(self, size: int) -> list[Message | CompressedMessage]:
        """Count *size* bytes that were read into `get_buffer`; return the message that they complete, if any."""
        self._filled += size
        if self._filled < self._size:
            if self._may_reserve and self._is_trusted(self._filled):
                assert self._body is not None
                received = memoryview(self._body)[: self._filled]
                if not self._move_to_place(received):
                    received.release()  # the buffer may have to grow
            return []
        body, self._body = self._body, None
        assert body is not None
        message = body if self._size >= _POOLED_FROM else bytes(body)
        self.longest = max(self.longest, self._size)
        self._has_all = self.is_single
        return [CompressedMessage(message) if self._flag else message]

    def discard(self) -> None:
        """Free the incomplete message, and ignore further content."""
        self._body = None
        self._prefix = b""
        self._has_all = True

    def _begin_message(self, data: Buffer, start: int, end: int, messages: list[Message | CompressedMessage]) -> int:
        """Read a prefix, or part of it, and the message if it is all here; return how far *data* was read."""
        if self._prefix or end - start < PREFIX_SIZE:
            piece = bytes(data[start : min(end, start + PREFIX_SIZE - len(self._prefix))])
            self._prefix += piece
            start += len(piece)
            if len(self._prefix) < PREFIX_SIZE:
                return start
            self._flag, self._size = PREFIX.unpack(self._prefix)
            self._prefix = b""
        else:
            self._flag, self._size = PREFIX.unpack_from(data, start)
            start += PREFIX_SIZE
        self._check_prefix()
        if end - start >= self._size:
            message = bytes(data[start : start + self._size])
            messages.append(CompressedMessage(message) if self._flag else message)
            self._has_all = self.is_single
            return start + self._size
        self._filled = 0
        self._may_reserve = self.reserve is not None and not self._flag and self._size > RESERVED_FROM
        if self._may_reserve and self._is_trusted(end - start):
            self._pooled_size = 0
            received = memoryview(data)[start:end]
            if self._move_to_place(received):
                self._filled = end - start
                return end
        self._body = self._pool.take(self._size)
        if self._body is None:
            self._body = self._allocate(min(self._size, max(_INITIAL_ALLOCATION, _GROWTH * (end - start))))
            self._pooled_size = 0
        else:
            self._pooled_size = self._size
        return start

    def _is_trusted(self, received: int) -> bool:
        """Whether enough of the message has arrived to ask for its place."""
        return received >= _LEAST_HEAD and trusted_size(received, self.longest) >= self._size

    def _move_to_place(self, received: memoryview) -> bool:
        """Copy what was received of the message to a place that the method has for it; return whether it has one."""
        self._may_reserve = False
        assert self.reserve is not None
        place = self.reserve(received, self._size) if len(received) <= _MOST_COPIED else None
        if place is None:
            return False
        place[: len(received)] = received
        old, self._body = self._body, place
        self._pooled_size = 0
        received.release()
        if old is not None and len(old) == self._size:
            self._pool.put(old)
        return True

    def _check_prefix(self) -> None:
        if self._flag > 1:
            raise MessageError(GrpcStatus.INTERNAL, f"Bad GRPC frame type 0x{self._flag:02x}")
        if self._size > MAX_MESSAGE_SIZE:
            text = f"SERVER: Received message larger than max ({self._size} vs. {MAX_MESSAGE_SIZE})"
            raise MessageError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        if self._size > self._budget:
            text = too_long_for_budget("message", self._size, self._budget)
            raise MessageError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        if self._flag and self._encoding == "identity":
            raise MessageError(GrpcStatus.INTERNAL, "cannot decompress a message: the call has no grpc-encoding")

    def _reserve(self, size: int) -> None:
        """Grow the buffer, if necessary, so that *size* more bytes fit."""
        body = self._body
        assert body is not None
        if self._filled + size > len(body):
            assert isinstance(body, bytearray), "a place has the message's size"
            self._allocate(min(self._size, max(len(body) * _GROWTH, self._filled + size)), body)

    @staticmethod
    def _allocate(size: int, body: bytearray | None = None) -> bytearray:
        """A buffer of *size* bytes, or *body* with so many. It has room for one more, see `BufferPool.take`."""
        try:
            if body is None:
                body = new_bytes(size + 1)
            else:
                resize_bytes(body, size + 1)
        except MemoryError:
            text = f"cannot allocate memory for a message of {size} bytes; try again later, or send smaller messages"
            raise MessageError(GrpcStatus.RESOURCE_EXHAUSTED, text) from None
        body.pop()
        return body


def with_prefix(parts: list[Buffer], size: int, encoding: Encoding) -> tuple[list[Buffer], int]:
    """The parts of a message of *size* bytes behind its prefix, compressed where that is shorter; their total size."""
    if encoding != "identity" and size >= _COMPRESSED_FROM:
        # A view of zero bytes may have a shape that compressors refuse.
        compressed = compress([part for part in parts if len(part)], encoding)
        if len(compressed) < size:
            return [PREFIX.pack(1, len(compressed)), compressed], len(compressed) + PREFIX_SIZE
    return [PREFIX.pack(0, size), *parts], size + PREFIX_SIZE
