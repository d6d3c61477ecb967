"""Calls on their streams: content to messages, responses or a status back.

`GrpcCall` is the part that every call has: it reads messages, keeps the deadline and ends with a status. Kinds of calls
derive from it and say what to do with messages and with a cancellation: `UnaryCall` has one message each way,
`CoroutineCall` is a unary call whose method is a coroutine. They derive, rather than hold a second object, because a
call is allocated for each request.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from naiad.errors import Code, NaiadError
from naiad.frontends.grpc import response_fields
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.messages import PREFIX_SIZE, BufferPool, MessageError, MessageReader, size_of, with_prefix
from naiad.frontends.http2.frames import ErrorCode
from naiad.frontends.http2.stream import Stream
from naiad.frontends.status import GRPC_STATUS, GrpcStatus
from naiad.protocol.inference import Buffer

logger = logging.getLogger("naiad.grpc")

INCOMPLETE_MESSAGE = "the request ends within a message"
_UNPARSABLE = "Unable to parse request"


class CallContext(Protocol):
    """What all calls of a frontend share."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def pool(self) -> BufferPool:
        """Buffers of long messages."""

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Running coroutines of calls. The loop keeps only weak references to its tasks."""


C = TypeVar("C", bound=CallContext)


class GrpcCall(ABC, Generic[C]):
    """One call: the handler of its stream.

    Errors of any kind end it with a status; nothing is raised to the connection.
    """

    __slots__ = ("_context", "_deadline_timer", "_has_sent_headers", "_head", "_is_over", "_reader", "_stream")

    def __init__(self, stream: Stream, head: CallHead[Any], context: C) -> None:
        self._stream = stream
        self._head = head
        self._context = context
        self._reader: MessageReader | None = None
        self._is_over = False
        self._has_sent_headers = False
        self._deadline_timer = (
            None if head.timeout is None else context.loop.call_later(head.timeout, self._on_deadline)
        )

    # -- for the kinds of calls ---------------------------------------------------------------------------------

    @abstractmethod
    def _on_messages(self, messages: list[bytes | bytearray], *, ended: bool) -> None:
        """The client sent messages; *ended* after its last one."""

    @abstractmethod
    def _cancel(self) -> None:
        """Cancel what the call still does; its response is discarded."""

    # -- for the stream -----------------------------------------------------------------------------------------

    def on_data(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - see `StreamHandler`
        """Content arrived."""
        if self._is_over:
            return
        if self._reader is None:
            self._reader = MessageReader(self._head.encoding, self._context.pool)
        try:
            messages = self._reader.feed(data, start, end)
        except MessageError as error:
            self.fail_with(error.status, error.text)
            return
        self._on_messages(messages, ended=ended)

    def get_buffer(self, size: int) -> memoryview | None:
        """The rest of the incomplete message's buffer."""
        return None if self._reader is None or self._is_over else self._reader.get_buffer(size)

    def buffer_updated(self, size: int) -> None:
        """Content was read into that buffer."""
        if self._is_over or self._reader is None:
            return
        try:
            messages = self._reader.buffer_updated(size)
        except MessageError as error:
            self.fail_with(error.status, error.text)
            return
        self._on_messages(messages, ended=False)

    def on_sent(self, marker: object) -> None:
        """A message was handed to the transport."""

    def on_cancel(self) -> None:
        """The client reset the stream or disconnected."""
        if not self._is_over:
            self._finish()
            self._cancel()

    # -- for methods --------------------------------------------------------------------------------------------

    def respond(self, parts: list[Buffer]) -> None:
        """End the call with its only message."""
        self._finish()
        encoding = self._head.response_encoding
        prefixed, size = with_prefix(parts, sum(map(size_of, parts)), encoding)
        stream = self._stream
        stream.sender.send_response(
            stream, response_fields.HEADERS[encoding], prefixed, size, response_fields.OK_TRAILERS
        )

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        if isinstance(error, NaiadError):
            self.fail_with(GRPC_STATUS[error.code], error.message)
        else:
            logger.error("cannot complete a call: unexpected error", exc_info=error)
            self.fail_with(GrpcStatus.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def fail_with(self, status: GrpcStatus, text: str) -> None:
        """End the call with a status, and cancel what it still does."""
        if self._is_over:
            return
        self._finish()
        self._cancel()
        stream = self._stream
        if self._has_sent_headers:
            trailers = response_fields.error_trailers(status, text)
            stream.sender.send_trailers(stream, trailers, is_constant=False)
        else:
            fields = response_fields.trailers_only(status, text)
            stream.sender.send_headers(stream, fields, is_constant=False, ends=True)

    def _finish(self) -> None:
        self._is_over = True
        # Half a message may be long, and calls of ModelStreamInfer are in reference cycles: release it now.
        self._reader = None
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        if self._stream.unsent:  # a status would have to wait behind data that the client does not read
            self._finish()
            self._cancel()
            self._stream.controller.reset_stream(self._stream, ErrorCode.CANCEL)
        else:
            self.fail_with(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")


class UnaryCall(GrpcCall[C]):
    """A call with one message. It begins once the request is complete."""

    __slots__ = ("_message",)

    def __init__(self, stream: Stream, head: CallHead[Any], context: C) -> None:
        super().__init__(stream, head, context)
        self._message: bytes | bytearray | None = None

    @abstractmethod
    def _on_message(self, message: bytes | bytearray) -> None:
        """The request is complete."""

    def on_data(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - see `StreamHandler`
        """Content arrived. Nearly always it is the whole request, which then needs no `MessageReader`."""
        size = end - start - PREFIX_SIZE
        if (
            ended
            and self._reader is None
            and size >= 0
            and not data[start]  # not compressed
            and int.from_bytes(data[start + 1 : start + PREFIX_SIZE], "big") == size
        ):
            self._on_message(bytes(data[start + PREFIX_SIZE : end]))
        else:
            super().on_data(data, start, end, ended)

    def _on_messages(self, messages: list[bytes | bytearray], *, ended: bool) -> None:
        if messages and self._message is None:  # the reference ignores further messages too
            self._message = messages[0]
        if not ended:
            return
        message, self._message = self._message, None
        if self._reader is not None and self._reader.is_within_message:
            self.fail_with(GrpcStatus.INTERNAL, INCOMPLETE_MESSAGE)
        elif message is None:
            self.fail_with(GrpcStatus.INTERNAL, _UNPARSABLE)
        else:
            self._on_message(message)


class CoroutineCall(UnaryCall[C]):
    """A call whose method is a coroutine.

    The coroutine runs to its end even if the client cancels, as in Triton. Otherwise a model whose load takes longer
    than the client's deadline would never be loaded.
    """

    __slots__ = ("_function", "_request_type")

    def __init__(
        self,
        stream: Stream,
        head: CallHead[Any],
        context: C,
        *,
        request_type: type[Message],
        function: Callable[[Any], Awaitable[Message]],
    ) -> None:
        super().__init__(stream, head, context)
        self._request_type = request_type
        self._function = function

    def _on_message(self, message: bytes | bytearray) -> None:
        tasks = self._context.tasks
        task = self._context.loop.create_task(self._run(bytes(message)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _run(self, message: bytes) -> None:
        try:
            response = await self._function(self._request_type.FromString(message))
            self.respond([response.SerializeToString()])
        except DecodeError:
            self.fail(NaiadError(_UNPARSABLE, code=Code.INTERNAL))
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self.fail(error)

    def _cancel(self) -> None:
        pass
