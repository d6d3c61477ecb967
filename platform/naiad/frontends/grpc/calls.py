"""Calls on their streams: messages in, messages or an error out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError, Message

from naiad.engine.door import EngineDoor
from naiad.errors import Code, NaiadError
from naiad.frontends.access import HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc import response_fields as answers
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.gate import Gate
from naiad.frontends.grpc.messages import PREFIX_SIZE, BufferPool, MessageError, MessageReader, framed
from naiad.frontends.http2.frames import ErrorCode
from naiad.frontends.http2.stream import Stream
from naiad.frontends.kserve_grpc.service import InferenceService
from naiad.frontends.kserve_grpc.wire_format import size_of
from naiad.frontends.status import GRPC_STATUS, GrpcStatus
from naiad.protocol.inference import Buffer, InferRequest

logger = logging.getLogger("naiad.grpc")

CUT_OFF = "the request ends within a message"
_UNPARSABLE = "Unable to parse request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What all calls of a frontend share.

    Attributes:
        engine: Who answers inferences.
        gate: Counts them.
        service: The methods.
        extensions: What is shared with other frontends.
        forwarder: Makes parameters of metadata, where that is wished.
        loop: The event loop.
        pool: Buffers of long messages.
        tasks: Methods that are being carried out.
    """

    engine: EngineDoor
    gate: Gate
    service: InferenceService
    extensions: Extensions
    forwarder: HeaderForwarder | None
    loop: asyncio.AbstractEventLoop
    pool: BufferPool = field(default_factory=BufferPool)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Call:
    """The receiver of one stream. Errors of any kind end it with a status; nothing is raised to the connection."""

    __slots__ = ("_begun", "_head", "_is_over", "_reader", "_serving", "_stream", "_timer")

    def __init__(self, stream: Stream, head: CallHead[Any], serving: Serving) -> None:
        self._stream = stream
        self._head = head
        self._serving = serving
        self._reader: MessageReader | None = None
        self._is_over = False
        self._begun = False
        self._timer = None if head.timeout is None else serving.loop.call_later(head.timeout, self._expire)

    # -- for the stream -----------------------------------------------------------------------------------------

    def received(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Take content."""
        if self._is_over:
            return
        if self._reader is None:
            self._reader = MessageReader(self._head.encoding, self._serving.pool)
        try:
            messages = self._reader.feed(data, start, end)
        except MessageError as error:
            self.fail_with(error.status, error.text)
            return
        self._take(messages, ended=ended)

    def room(self, size: int) -> memoryview | None:
        """Where content may be read to."""
        return None if self._reader is None or self._is_over else self._reader.room(size)

    def filled(self, size: int) -> None:
        """Take content that was read there."""
        if self._is_over or self._reader is None:
            return
        try:
            messages = self._reader.filled(size)
        except MessageError as error:
            self.fail_with(error.status, error.text)
            return
        self._take(messages, ended=False)

    def left(self, mark: object) -> None:
        """A message is in the system's hands."""

    def cancelled(self) -> None:
        """The client does not want the answer any more, or is gone."""
        if not self._is_over:
            self._end()
            self._take_back()

    # -- for methods --------------------------------------------------------------------------------------------

    def answer(self, parts: list[Buffer]) -> None:
        """End the call with its only message."""
        self._end()
        encoding = self._head.answers
        framed_parts, size = framed(parts, sum(map(size_of, parts)), encoding)
        stream = self._stream
        stream.connection.respond(stream, answers.BEGIN[encoding], framed_parts, size, answers.OK)

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        if isinstance(error, NaiadError):
            self.fail_with(GRPC_STATUS[error.code], error.message)
        else:
            logger.error("a call ended unforeseen", exc_info=error)
            self.fail_with(GrpcStatus.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def fail_with(self, status: GrpcStatus, text: str) -> None:
        """End the call with a status; what it still does is taken back."""
        if self._is_over:
            return
        self._end()
        self._take_back()
        stream = self._stream
        if self._begun:
            stream.connection.finish(stream, answers.trailers(status, text), is_constant=False)
        else:
            stream.connection.start(stream, answers.refusal(status, text), is_constant=False, ends=True)

    # -- for kinds of calls -------------------------------------------------------------------------------------

    def _take(self, messages: list[bytes | bytearray], *, ended: bool) -> None:
        """Take messages; *ended* after the last."""
        raise NotImplementedError

    def _take_back(self) -> None:
        """Cancel what is going on."""
        raise NotImplementedError

    def _end(self) -> None:
        self._is_over = True
        self._reader = None  # half a message may be long, and calls of streams wait for the collector of garbage
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self._stream.unsent:  # a status would wait behind what the client does not read
            self._end()
            self._take_back()
            self._stream.connection.reset(self._stream, ErrorCode.CANCEL)
        else:
            self.fail_with(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _forward(self, request: InferRequest) -> None:
        if self._serving.forwarder is not None:
            self._serving.forwarder.forward(request, self._head.metadata)


class SingleCall(Call):
    """A call with one message. It begins when the request is whole."""

    __slots__ = ("_message",)

    def __init__(self, stream: Stream, head: CallHead[Any], serving: Serving) -> None:
        super().__init__(stream, head, serving)
        self._message: bytes | bytearray | None = None

    def received(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001
        """Take content; nearly always it is all there is."""
        size = end - start - PREFIX_SIZE
        if (
            ended
            and self._reader is None
            and size >= 0
            and not data[start]
            and int.from_bytes(data[start + 1 : start + PREFIX_SIZE], "big") == size
        ):
            self._run(bytes(data[start + PREFIX_SIZE : end]))
        else:
            super().received(data, start, end, ended)

    def _take(self, messages: list[bytes | bytearray], *, ended: bool) -> None:
        if messages and self._message is None:  # the reference looks at no other, either
            self._message = messages[0]
        if not ended:
            return
        message, self._message = self._message, None
        if self._reader is not None and self._reader.is_within:
            self.fail_with(GrpcStatus.INTERNAL, CUT_OFF)
        elif message is None:
            self.fail_with(GrpcStatus.INTERNAL, _UNPARSABLE)
        else:
            self._run(message)

    def _run(self, message: bytes | bytearray) -> None:
        """Answer the message."""
        raise NotImplementedError


class ControlCall(SingleCall):
    """A call of a method that is a coroutine. It is carried out though its client waits no more, as in Triton.

    A load that takes longer than its client has patience would otherwise never be done.
    """

    __slots__ = ("_function", "_request_type")

    def __init__(
        self,
        stream: Stream,
        head: CallHead[Any],
        serving: Serving,
        request_type: type[Message],
        function: Callable[[Any], Awaitable[Message]],
    ) -> None:
        super().__init__(stream, head, serving)
        self._request_type = request_type
        self._function = function

    def _run(self, message: bytes | bytearray) -> None:
        tasks = self._serving.tasks
        task = self._serving.loop.create_task(self._serve(bytes(message)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, message: bytes) -> None:
        try:
            response = await self._function(self._request_type.FromString(message))
            self.answer([response.SerializeToString()])
        except DecodeError:
            self.fail(NaiadError(_UNPARSABLE, code=Code.INTERNAL))
        except Exception as error:  # noqa: BLE001 - it becomes the call's status
            self.fail(error)

    def _take_back(self) -> None:
        pass
