"""Messages as they travel on a stream: each behind five bytes, a flag and its length, and compressed if so agreed.

Long messages are received into buffers of their size, which are kept for the next ones: memory that was never touched
before costs more than what is done with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Literal

from naiad.errors import InvalidRequestError
from naiad.frontends.http1.compression import compress, decompress
from naiad.frontends.kserve_grpc.request_codec import MAX_MESSAGE_SIZE
from naiad.frontends.status import GrpcStatus
from naiad.protocol.inference import Buffer

PREFIX = struct.Struct(">BL")
PREFIX_SIZE = 5

_KEPT_FROM = 1 << 16
"""Messages from this size are received into buffers that are kept."""
_KEPT_BYTES = 1 << 26
_TRUSTED = 1 << 22
"""Memory that is taken on the word of a client, before its message is here."""
_GROWTH = 4
_COMPRESSED_FROM = 1 << 8
"""Shorter messages hardly become shorter."""

Encoding = Literal["identity", "deflate", "gzip"]
Message = bytes | bytearray


class MessageError(Exception):
    """A stream carries what is no message.

    Attributes:
        status: What the call ends with.
        text: Why.
    """

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class BufferPool:
    """Buffers of messages that were answered. One that is still looked at is never given out again."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[bytearray]] = {}
        self._size = 0

    def take(self, size: int) -> bytearray | None:
        """A buffer of just this size, if there is one."""
        kept = self._buffers.get(size)
        while kept:
            buffer = kept.pop()
            self._size -= size
            try:
                # A buffer that anyone has a view of cannot change its size. There is room for this (see `keep`).
                buffer.append(0)
                buffer.pop()
            except BufferError:
                continue
            return buffer
        return None

    def keep(self, buffer: Message) -> None:
        """Keep the buffer of a message that is done with."""
        size = len(buffer)
        if not isinstance(buffer, bytearray) or not _KEPT_FROM <= size <= _KEPT_BYTES:
            return
        if self._size + size > _KEPT_BYTES:
            self._buffers.clear()
            self._size = 0
        self._buffers.setdefault(size, []).append(buffer)
        self._size += size


class MessageReader:
    """Puts messages together from the content of a stream."""

    __slots__ = ("_body", "_encoding", "_filled", "_flag", "_head", "_pool", "_size")

    def __init__(self, encoding: Encoding, pool: BufferPool) -> None:
        self._encoding = encoding
        self._pool = pool
        self._head = b""
        self._body: bytearray | None = None
        self._flag = self._size = self._filled = 0

    @property
    def is_within(self) -> bool:
        """Whether a message has begun and is not over."""
        return bool(self._head) or self._body is not None

    def feed(self, data: Buffer, start: int, end: int) -> list[Message]:
        """Take content; return the messages that end in it.

        Raises:
            MessageError: If it is none.
        """
        found: list[Message] = []
        while start < end:
            if self._body is None:
                start = self._begin(data, start, end, found)
            else:
                size = min(end - start, self._size - self._filled)
                self._grow(size)
                self._body[self._filled : self._filled + size] = memoryview(data)[start : start + size]
                start += size
                found += self.filled(size)
        return found

    def room(self, size: int) -> memoryview | None:
        """Where *size* bytes of content may be read to, or the first of them."""
        if self._body is None or self._filled == self._size:
            return None
        if self._filled == len(self._body):
            self._grow(1)
        return memoryview(self._body)[self._filled : self._filled + size]

    def filled(self, size: int) -> list[Message]:
        """Note that bytes were read to `room`; return the message that ends with them, if one does.

        Raises:
            MessageError: If it is none.
        """
        self._filled += size
        if self._filled < self._size:
            return []
        body, self._body = self._body, None
        assert body is not None
        return [self._plain(self._flag, body if self._size >= _KEPT_FROM else bytes(body))]

    def _begin(self, data: Buffer, start: int, end: int, found: list[Message]) -> int:
        if self._head or end - start < PREFIX_SIZE:
            piece = bytes(data[start : min(end, start + PREFIX_SIZE - len(self._head))])
            self._head += piece
            start += len(piece)
            if len(self._head) < PREFIX_SIZE:
                return start
            self._flag, self._size = PREFIX.unpack(self._head)
            self._head = b""
        else:
            self._flag, self._size = PREFIX.unpack_from(data, start)
            start += PREFIX_SIZE
        self._check()
        if end - start >= self._size:
            found.append(self._plain(self._flag, bytes(data[start : start + self._size])))
            return start + self._size
        self._filled = 0
        self._body = self._pool.take(self._size)
        if self._body is None:
            self._body = bytearray(min(self._size, _TRUSTED) + 1)
            self._body.pop()  # leaves room for `BufferPool.take`
        return start

    def _check(self) -> None:
        if self._flag > 1:
            raise MessageError(GrpcStatus.INTERNAL, f"Bad GRPC frame type 0x{self._flag:02x}")
        if self._size > MAX_MESSAGE_SIZE:
            text = f"SERVER: Received message larger than max ({self._size} vs. {MAX_MESSAGE_SIZE})"
            raise MessageError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        if self._flag and self._encoding == "identity":
            raise MessageError(GrpcStatus.INTERNAL, "Compressed message without a grpc-encoding that says how")

    def _grow(self, size: int) -> None:
        body = self._body
        assert body is not None
        if self._filled + size > len(body):
            wanted = min(self._size, max(len(body) * _GROWTH, self._filled + size))
            body += bytes(wanted - len(body))

    def _plain(self, flag: int, data: Message) -> Message:
        if not flag:
            return data
        try:
            return bytes(decompress(data, self._encoding.encode(), MAX_MESSAGE_SIZE))
        except InvalidRequestError as error:
            text = f"Unexpected error decompressing data for algorithm {self._encoding}: {error.message}"
            raise MessageError(GrpcStatus.INTERNAL, text) from None


def framed(parts: list[Buffer], size: int, encoding: Encoding) -> tuple[list[Buffer], int]:
    """A message with what stands before it, compressed if that makes it shorter; and the size of all."""
    if encoding != "identity" and size >= _COMPRESSED_FROM:
        shorter = compress(_bytes_of(parts), encoding)
        if len(shorter) < size:
            return [PREFIX.pack(1, len(shorter)), shorter], len(shorter) + PREFIX_SIZE
    return [PREFIX.pack(0, size), *parts], size + PREFIX_SIZE


def _bytes_of(parts: Iterable[Buffer]) -> Iterable[Buffer]:
    return [part for part in parts if len(part)]
