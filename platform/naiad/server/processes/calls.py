"""Calls of services of the process at the other end of a link, by their names, and its calls of services here."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from naiad.core.errors import NaiadError, NotReadyError, fresh, unexpected_error
from naiad.server.processes.link import Link, Payload
from naiad.server.processes.messages import CallResult, FrameKind, RemoteCall, pack, unpack

logger = logging.getLogger("naiad.frontends")

Service = Callable[..., Any]


class ProcessExitedError(NotReadyError):
    """The process that a call or a request was sent to has exited."""


class RemoteCalls:
    """Calls in both directions. Those of one direction arrive in their order."""

    def __init__(self, link: Link, services: MutableMapping[str, Service], exited: ProcessExitedError) -> None:
        """*services* are what the other process may call; calls fail with *exited* once that process has exited."""
        self.services = services
        self._link = link
        self._exited = exited
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}  # calls without their result
        self._tasks: set[asyncio.Task[None]] = set()
        self.handlers = {FrameKind.CALL: self._on_call, FrameKind.RESULT: self._on_result}

    def notify(self, name: str, *arguments: Any) -> None:
        """Call a service that has no result."""
        self._link.send(pack(FrameKind.CALL, RemoteCall(0, name, arguments, {})))

    def notify_with(self, descriptor: int, name: str, *arguments: Any) -> None:
        """Call a service that has no result; its first argument is a duplicate of *descriptor*, which it owns."""
        self._link.send_descriptor(pack(FrameKind.CALL, RemoteCall(0, name, arguments, {}, True)), descriptor)

    def call(self, name: str, *arguments: Any, **keywords: Any) -> asyncio.Future[Any]:
        """Call a service; its result, or the error that it raises."""
        result = self._loop.create_future()
        result.add_done_callback(_retrieve)  # some callers do not look at late results
        if not self._link.is_open:
            result.set_exception(fresh(self._exited))
            return result
        number = next(self._numbers)
        self._open[number] = result
        self._link.send(pack(FrameKind.CALL, RemoteCall(number, name, arguments, keywords)))
        return result

    def close(self) -> None:
        """The other process has exited: end calls of its services. Its own calls, such as a load, are completed."""
        while self._open:
            result = self._open.popitem()[1]
            if not result.done():
                result.set_exception(fresh(self._exited))

    def _on_result(self, payload: Payload) -> None:
        result: CallResult = unpack(payload)
        waiting = self._open.pop(result.number, None)
        if waiting is None or waiting.done():
            return  # its caller was cancelled
        if result.error is None:
            waiting.set_result(result.value)
        else:
            waiting.set_exception(result.error)

    def _on_call(self, payload: Payload) -> None:
        call: RemoteCall = unpack(payload)
        arguments = call.arguments
        if call.has_descriptor:
            arguments = (self._link.descriptors.popleft(), *arguments)
        try:
            value = self.services[call.name](*arguments, **call.keywords)
        except Exception as error:  # noqa: BLE001 - the caller gets it, or the log
            self._reply(call, None, error)
            return
        if isinstance(value, Awaitable):
            task = self._loop.create_task(self._reply_later(call, value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._reply(call, value)

    async def _reply_later(self, call: RemoteCall, result: Awaitable[Any]) -> None:
        try:
            value = await result
        except Exception as error:  # noqa: BLE001 - the caller gets it, or the log
            self._reply(call, None, error)
        else:
            self._reply(call, value)

    def _reply(self, call: RemoteCall, value: Any, error: Exception | None = None) -> None:
        if error is not None and not (call.number and isinstance(error, NaiadError)):
            logger.error("cannot call '%s'", call.name, exc_info=error)
            error = unexpected_error(f"call '{call.name}'", error)
        if not call.number:
            return
        try:
            result = pack(FrameKind.RESULT, CallResult(call.number, value, error))
        except Exception as problem:  # another process, or one of its clients, waits for the result
            logger.exception("cannot pack the result of a call of another process")
            failure = unexpected_error("return the result of a call", problem)
            result = pack(FrameKind.RESULT, CallResult(call.number, None, failure))
        self._link.send(result)
        self._link.flush()


def _retrieve(result: asyncio.Future[Any]) -> None:
    if not result.cancelled():
        result.exception()
