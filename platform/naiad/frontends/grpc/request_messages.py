"""The request side of one call: content of the stream to messages, as fast as memory and the method allow.

A call whose whole request arrives in one short frame does without this object (see `GrpcCall.on_data`).

Three things stop the client, each by not opening the stream's window again: the budget for messages is full, a message
is decompressed on a thread, or the method has a backlog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Protocol, cast

from naiad.frontends.grpc.decompressor import MessageDecompressor
from naiad.frontends.grpc.messages import CompressedMessage, Encoding, Message, MessageError, MessageReader
from naiad.frontends.http2.stream import Stream
from naiad.frontends.request_budget import Charge
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.status import GrpcStatus
from naiad.protocol.inference import Buffer

COUNTED_FROM = 1 << 14
"""Bytes from which the messages of a call count in the budget. A connection has at most 16 Ki calls at a time, so what
is not counted is at most 256 MiB for each."""
_UNREAD_PIECE = 1 << 14  # bytes of unread content that are read at a time


class MessageConsumer(Protocol):
    """What receives the messages of a call."""

    def on_messages(self, messages: list[Message], *, ended: bool) -> None:
        """The client sent messages; *ended* after its last one."""

    @property
    def waiting_size(self) -> int:
        """Bytes of messages that the consumer still refers to. They count in the budget."""

    @property
    def has_backlog(self) -> bool:
        """Whether the client should send nothing more for now."""

    @property
    def is_full(self) -> bool:
        """Whether further content is kept as it is, until the consumer asks for it (`RequestMessages.read_unread`)."""


@dataclass(slots=True, eq=False)
class RequestMessages:
    """Reads the messages of one call, counts them in the budget and decompresses them. Implements `Receiver`."""

    _stream: Stream
    _reader: MessageReader
    _memory: RequestMemory
    _consumer: MessageConsumer | None  # None once the call is over
    _fail: Callable[[GrpcStatus, str], None]  # ends the call, and releases its request
    encoding: InitVar[Encoding]
    charge: Charge | None = None  # None for a call that has never held much
    unread: bytearray | None = None  # content that arrived while the consumer was full; None without such
    _is_unread_last: bool = False  # of the request
    _is_stopped: bool = False  # by the budget
    _decompressor: MessageDecompressor | None = None

    def __post_init__(self, encoding: Encoding) -> None:
        if encoding != "identity":
            fail = partial(self._fail, GrpcStatus.INTERNAL)
            threads = self._memory.threads
            self._decompressor = MessageDecompressor(encoding, threads, self._on_decompressed, self.recount, fail)

    def __repr__(self) -> str:
        unread = 0 if self.unread is None else len(self.unread)
        return f"<RequestMessages of {self._stream!r} unread={unread}>"

    # -- content of the stream ----------------------------------------------------------------------------------

    def on_data(self, data: Buffer, start: int, end: int, *, ended: bool) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        if self.unread is None and not consumer.is_full:
            self._read(data, start, end, ended=ended)
            return
        if self.unread is None:
            self.unread = bytearray()
        self.unread += memoryview(data)[start:end]
        self._is_unread_last = ended
        self.recount()

    def get_buffer(self, size: int) -> memoryview | None:
        return self._reader.get_buffer(size) if self.unread is None else None

    def buffer_updated(self, size: int) -> None:
        try:
            messages = self._reader.buffer_updated(size)
        except MessageError as error:
            self._fail(error.status, error.text)
            return
        self._on_received(messages, ended=False)

    def _read(self, data: Buffer, start: int, end: int, *, ended: bool) -> None:
        try:
            messages = self._reader.feed(data, start, end)
        except MessageError as error:
            self._fail(error.status, error.text)
            return
        self._on_received(messages, ended=ended)

    def _on_received(self, messages: list[Message | CompressedMessage], *, ended: bool) -> None:
        decompressor = self._decompressor
        if decompressor is not None:
            decompressor.feed(messages, ended=ended)
            self.recount()
            return
        consumer = self._consumer
        if consumer is None:
            return
        plain = cast("list[Message]", messages)  # the reader rejects compressed messages of a call without encoding
        controller = self._stream.controller
        controller.longest_message = max(controller.longest_message, self._reader.longest)
        held = self._reader.held_size
        if held or plain:
            self.count(held + consumer.waiting_size + sum(map(len, plain)))
            if self._consumer is None:  # refused
                return
        consumer.on_messages(plain, ended=ended)

    def _on_decompressed(self, messages: list[Message], ended: bool) -> None:  # noqa: FBT001 - a callback's arguments
        if self._consumer is not None:
            self._consumer.on_messages(messages, ended=ended)
            self.recount()

    @property
    def is_within_message(self) -> bool:
        return self._reader.is_within_message

    # -- for a consumer with a backlog --------------------------------------------------------------------------

    def read_unread(self) -> bool:
        """Read a piece of the content that was kept; return whether there was any."""
        unread = self.unread
        if unread is None:
            return False
        piece = bytes(memoryview(unread)[:_UNREAD_PIECE])
        del unread[:_UNREAD_PIECE]  # which only moves the beginning of the buffer
        is_last = not unread
        if is_last:
            self.unread = None
        self._read(piece, 0, len(piece), ended=is_last and self._is_unread_last)
        return True

    def update_window(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        stream = self._stream
        is_busy = self._decompressor is not None and self._decompressor.is_busy
        is_paused = self._is_stopped or is_busy or self.unread is not None or consumer.has_backlog
        if is_paused is not stream.is_paused:
            if is_paused:
                stream.controller.pause_stream(stream)
            else:
                stream.controller.resume_stream(stream)

    # -- the budget for messages --------------------------------------------------------------------------------

    def recount(self) -> bool:
        """Count all that the call holds; return whether to continue decompressing."""
        consumer = self._consumer
        if consumer is None:
            return False
        held = self._reader.held_size + consumer.waiting_size
        if self._decompressor is not None:
            held += self._decompressor.held_size
        if self.unread is not None:
            held += len(self.unread)
        self.count(held)
        self.update_window()
        return not self._is_stopped

    def count(self, size: int) -> None:
        """Count *size* bytes as what the call's messages hold now. The call may be over when this returns."""
        charge = self.charge
        if charge is None:
            if size < COUNTED_FROM:
                return
            charge = self.charge = self._memory.budget.open(self)
        if size < charge.size:
            charge.reduce(charge.size - size)
        elif not charge.add(size - charge.size) and not self._is_stopped:
            self._is_stopped = True
            self.update_window()

    def complete(self) -> None:
        """The request is complete: it is not refused any more, and counts until `release`."""
        if self.charge is not None:
            self.charge.complete()

    def resume_receiving(self) -> None:
        self._is_stopped = False
        if self._decompressor is not None:
            self._decompressor.resume()
        self.update_window()

    def refuse(self, reason: str) -> None:
        self._fail(GrpcStatus.RESOURCE_EXHAUSTED, reason)

    def release(self) -> None:
        """Free all that is held: the call is over. Nothing is delivered any more."""
        self._consumer = None
        self._reader.discard()
        self.unread = None
        if self.charge is not None:
            self.charge.release()
        if self._decompressor is not None:
            self._decompressor.cancel()
            self._decompressor = None
