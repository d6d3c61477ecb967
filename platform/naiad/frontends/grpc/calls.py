"""One call on its stream of HTTP/2. What its method does is another object.

| object | what it does |
|---|---|
| `GrpcCall` | handles the stream: recognises a whole request, keeps the deadline, ends with a response or a status |
| `RequestMessages` | reads a request that does not come in one frame, within the budget for messages |
| `UnaryMethod`, `StreamingMethod` | get messages, and respond through the call; they know nothing of frames |

The path of a usual request: `GrpcApplication.handle_request` makes the `GrpcCall`; its `on_data` finds one whole
message in the frame, begins the method and hands it over; the method calls `respond`. `RequestMessages` is not needed.

A call and its method refer to each other until the call is over. It then drops its reference, so that both are freed at
once: the cyclic garbage collector runs rarely, and would have to examine every call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from naiad.core.errors import NaiadError
from naiad.frontends.grpc import response_fields
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.messages import PREFIX_SIZE, BufferPool, Message, MessageReader, Reserve, with_prefix
from naiad.frontends.grpc.request_messages import COUNTED_FROM, MessageConsumer, RequestMessages
from naiad.frontends.http1.compression import size_of
from naiad.frontends.http2.frames import ErrorCode
from naiad.frontends.http2.stream import Stream
from naiad.frontends.request_budget import Charge
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.status import GRPC_STATUS, GrpcStatus
from naiad.frontends.unread_responses import COUNTED_FROM as UNREAD_FROM
from naiad.protocol.inference import Buffer

logger = logging.getLogger("naiad.grpc")

UNPARSABLE = "Unable to parse request"
_VIEWED_FROM = 1 << 14  # bytes of a message that is not copied out of the bytes that were received
_INCOMPLETE_MESSAGE = "the request ends within a message"


class CallContext(Protocol):
    """What all calls of a frontend share."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def pool(self) -> BufferPool:
        """Buffers of long messages."""

    @property
    def memory(self) -> RequestMemory:
        """The budget that long messages count in."""


class UnaryMethod(Protocol):
    """What handles one call whose request is one message. It is made when that message is complete."""

    def on_request(self, message: Message) -> None:
        """Handle the request, and call `respond` or `fail` of the call once, now or later."""

    def on_cancel(self) -> None:
        """The call is over without a response: cancel what is still done for it."""


class StreamingMethod(Protocol):
    """What handles one call with any number of messages each way.

    It is made when the call begins, and gets the messages by `GrpcCall.open_request`.
    """

    def on_sent(self, marker: object) -> None:
        """A message with a marker was handed to the transport."""

    def on_cancel(self) -> None:
        """The call has failed or the client cancelled it: cancel what is still done for it."""


class GrpcMethod(NamedTuple):
    """A method of a service: one of the two functions is given."""

    name: str  # its name, without that of the service
    begin_unary: Callable[[GrpcCall], UnaryMethod] | None = None
    begin_streaming: Callable[[GrpcCall], StreamingMethod] | None = None
    reserve: Reserve | None = None  # has places for its long messages; None without such


class GrpcCall:
    """One call: the handler of its stream.

    Errors of any kind end it with a status; nothing is raised to the connection.
    """

    __slots__ = (
        "_begin",
        "_charge",
        "_context",
        "_deadline_timer",
        "_has_sent_headers",
        "_request",
        "_stream",
        "_streaming",
        "_unary",
        "head",
        "is_over",
    )

    def __init__(self, stream: Stream, head: CallHead[GrpcMethod], method: GrpcMethod, context: CallContext) -> None:
        self._stream = stream
        self.head = head
        self._context = context
        self._begin = method.begin_unary  # None for a streaming method
        self._unary: UnaryMethod | None = None
        self._request: RequestMessages | None = None
        self._charge: Charge | None = None  # of a long message that arrived in one piece
        self.is_over = False  # Whether the call has its status. What the method does afterwards has no effect.
        self._has_sent_headers = False
        self._deadline_timer = (
            None if head.timeout is None else context.loop.call_later(head.timeout, self._on_deadline)
        )
        self._streaming: StreamingMethod | None = None
        if method.begin_streaming is not None:
            self._streaming = method.begin_streaming(self)

    def __repr__(self) -> str:
        return f"<GrpcCall on {self._stream!r}{' over' if self.is_over else ''}>"

    # -- for the stream -----------------------------------------------------------------------------------------

    def on_data(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - see `StreamHandler`
        """Content arrived. Nearly always it is the whole request of a unary method."""
        size = end - start - PREFIX_SIZE
        begin = self._begin
        if (
            ended
            and begin is not None
            and self._request is None
            and size >= 0
            and not data[start]  # not compressed
            and int.from_bytes(data[start + 1 : start + PREFIX_SIZE], "big") == size
        ):
            if size >= COUNTED_FROM:
                self._count(size)
                if self.is_over:
                    return
            method = self._unary = begin(self)
            start += PREFIX_SIZE
            # A view keeps all of *data*, so the message must be most of it.
            is_viewed = size >= _VIEWED_FROM and size * 2 >= len(data) and isinstance(data, bytes)
            method.on_request(memoryview(data)[start:end] if is_viewed else bytes(data[start:end]))
        elif not self.is_over:
            request = self._request or self.open_request(_UnaryRequest(self))
            request.on_data(data, start, end, ended=ended)

    def _count(self, size: int) -> None:
        """Count a message that arrived in one piece in the budget. The call is over if there is no room for it."""
        charge = self._charge = self._context.memory.budget.open(self)
        charge.add(size)
        if not self.is_over:
            charge.complete()

    def resume_receiving(self) -> None:
        """See `Receiver`: nothing is left to receive."""

    def refuse(self, reason: str) -> None:
        self.fail_with(GrpcStatus.RESOURCE_EXHAUSTED, reason)

    def get_buffer(self, size: int) -> memoryview | None:
        return None if self._request is None else self._request.get_buffer(size)

    def buffer_updated(self, size: int) -> None:
        if self._request is not None:
            self._request.buffer_updated(size)

    def on_sent(self, marker: object) -> None:
        if self._streaming is not None:
            self._streaming.on_sent(marker)

    def on_cancel(self) -> None:
        if not self.is_over:
            method = self.head.method
            # As the reference logs it, whose users look for this line.
            logger.debug("Cancellation notification received for %sHandler", "" if method is None else method.name)
            self._abandon()

    @property
    def is_unary(self) -> bool:
        return self._begin is not None

    @property
    def is_within_message(self) -> bool:
        """Whether the client owes its only message, or the rest of one."""
        if self.is_over:
            return False
        if self._streaming is None:
            return not self._stream.is_half_closed
        return self._request is not None and self._request.is_within_message

    def open_request(self, consumer: MessageConsumer) -> RequestMessages:
        """Read the messages of the request for *consumer*. A streaming method calls this when the call begins."""
        context, method, stream = self._context, self.head.method, self._stream
        reader = MessageReader(
            self.head.encoding,
            context.pool,
            context.memory.budget.limit,
            is_single=self._begin is not None,
            reserve=None if method is None else method.reserve,
            longest=stream.controller.longest_message,
        )
        self._request = RequestMessages(stream, reader, context.memory, consumer, self.fail_with, self.head.encoding)
        return self._request

    def begin_method(self, message: Message) -> None:
        """Pass on the only message of a request that did not arrive in one frame."""
        assert self._request is not None
        assert self._begin is not None
        self._request.complete()
        method = self._unary = self._begin(self)
        method.on_request(message)

    def fail_if_incomplete(self) -> bool:
        """End the call if its request has ended within a message; return whether it had."""
        if self._request is None or not self._request.is_within_message:
            return False
        self.fail_with(GrpcStatus.INTERNAL, _INCOMPLETE_MESSAGE)
        return True

    # -- for unary methods --------------------------------------------------------------------------------------

    def respond(self, parts: list[Buffer]) -> None:
        """End the call with its only message, or with an error if it may not wait for the client."""
        self._finish()
        stream, size = self._stream, sum(map(size_of, parts))
        if size >= UNREAD_FROM and not self._context.memory.budget.has_room(size):
            text = self._context.memory.budget.refusal_to_send
            fields = response_fields.trailers_only(GrpcStatus.RESOURCE_EXHAUSTED, text)
            stream.sender.send_headers(stream, fields, is_constant=False, ends=True)
            return
        encoding = self.head.response_encoding
        prefixed, size = with_prefix(parts, size, encoding)
        stream.sender.send_response(
            stream, response_fields.HEADERS[encoding], prefixed, size, response_fields.OK_TRAILERS
        )

    # -- for streaming methods ----------------------------------------------------------------------------------

    def send(self, message: bytes, marker: object) -> None:
        """Send a message; `on_sent` of the method gets a marker other than None once it has left."""
        if not self._has_sent_headers:
            self._send_headers()
        parts, size = with_prefix([message], len(message), self.head.response_encoding)
        stream = self._stream
        stream.sender.send_data(stream, parts, size, marker)

    def complete(self) -> None:
        """End the call without an error, behind the messages that were sent."""
        if not self._has_sent_headers:
            self._send_headers()
        self._finish()
        stream = self._stream
        stream.sender.send_trailers(stream, response_fields.OK_TRAILERS, is_constant=True)

    @property
    def unsent(self) -> int:
        """Bytes of memory that sent messages take which the client does not read yet."""
        return self._stream.unsent

    def defer(self, resume: Callable[[], None]) -> None:
        """Call *resume* in a later turn of the loop; nothing is read from the connection until then."""
        self._stream.controller.defer(resume)

    def _send_headers(self) -> None:
        self._has_sent_headers = True
        fields = response_fields.HEADERS[self.head.response_encoding]
        self._stream.sender.send_headers(self._stream, fields, is_constant=True, ends=False)

    # -- the end with an error ----------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        if isinstance(error, NaiadError):
            self.fail_with(GRPC_STATUS[error.code], error.message)
        else:
            logger.error("cannot complete a call: unexpected error", exc_info=error)
            self.fail_with(GrpcStatus.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def fail_with(self, status: GrpcStatus, text: str) -> None:
        """End the call with a status, and cancel what its method still does."""
        if self.is_over:
            return
        self._abandon()
        stream = self._stream
        if self._has_sent_headers:
            trailers = response_fields.error_trailers(status, text)
            stream.sender.send_trailers(stream, trailers, is_constant=False)
        else:
            fields = response_fields.trailers_only(status, text)
            stream.sender.send_headers(stream, fields, is_constant=False, ends=True)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        if self._stream.unsent:  # a status would have to wait behind data that the client does not read
            self._abandon()
            self._stream.controller.reset_stream(self._stream, ErrorCode.CANCEL)
        else:
            self.fail_with(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _abandon(self) -> None:
        method = self._unary or self._streaming
        self._finish()
        if method is not None:
            method.on_cancel()

    def _finish(self) -> None:
        """Free what the call holds, and break its reference cycles."""
        self.is_over = True
        self._unary = self._streaming = None
        if self._request is not None:
            self._request.release()
            self._request = None
        if self._charge is not None:
            charge, self._charge = self._charge, None
            charge.release()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None


class _UnaryRequest:
    """The only message of a unary call, until the client ends its request. Implements `MessageConsumer`."""

    __slots__ = ("_call", "_message")

    has_backlog = False
    is_full = False

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._message: Message | None = None

    @property
    def waiting_size(self) -> int:
        return 0 if self._message is None else len(self._message)

    def on_messages(self, messages: list[Message], *, ended: bool) -> None:
        if messages:
            self._message = messages[0]
        if not ended or self._call.fail_if_incomplete():
            return
        message, self._message = self._message, None
        if message is None:
            self._call.fail_with(GrpcStatus.INTERNAL, UNPARSABLE)
        else:
            self._call.begin_method(message)
