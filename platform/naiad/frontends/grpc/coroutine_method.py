"""Unary methods that are coroutines, all but inference: they get a message and return a document."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from naiad.core.errors import Code, NaiadError
from naiad.frontends.grpc.calls import UNPARSABLE, GrpcCall
from naiad.frontends.grpc.messages import Message

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoroutineMethod:
    """A method for all of its calls."""

    request_type: type[ProtobufMessage]
    response_type: type[ProtobufMessage]  # its fields have the names of the document's members
    function: Callable[[Any], Awaitable[Document]]
    max_size: int  # bytes of the longest message that is parsed on the event loop
    long_function: Callable[[bytes], Awaitable[Document]] | None = None  # gets bytes; None to reject
    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]  # The running coroutines. The loop keeps only weak references to its tasks.

    def begin(self, call: GrpcCall) -> CoroutineRun:
        return CoroutineRun(self, call)

    async def respond_to(self, message: bytes) -> ProtobufMessage:
        """The response to a message; DecodeError if it is malformed."""
        if self.long_function is not None and len(message) > self.max_size:
            document = await self.long_function(message)
        else:
            document = await self.function(self.request_type.FromString(message))
        return json_format.ParseDict(document, self.response_type())


@dataclass(frozen=True, slots=True)
class CoroutineRun:
    """One call of such a method.

    The coroutine runs to its end even if the client cancels, as in Triton. Otherwise a model whose load takes longer
    than the client's deadline would never be loaded.
    """

    _method: CoroutineMethod
    _call: GrpcCall

    def on_request(self, message: Message) -> None:
        method = self._method
        if len(message) > method.max_size and method.long_function is None:
            limit = f"request of {len(message)} bytes exceeds the limit of {method.max_size} bytes for this method"
            self._call.fail(NaiadError(limit, code=Code.INVALID_ARG))
            return
        task = method.loop.create_task(self._run(bytes(message)))
        method.tasks.add(task)
        task.add_done_callback(method.tasks.discard)

    def on_cancel(self) -> None:
        """Let the coroutine run."""

    async def _run(self, message: bytes) -> None:
        call = self._call
        try:
            response = await self._method.respond_to(message)
            call.respond([response.SerializeToString()])
        except DecodeError:
            call.fail(NaiadError(UNPARSABLE, code=Code.INTERNAL))
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            call.fail(error)
