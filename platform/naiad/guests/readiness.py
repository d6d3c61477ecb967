"""Asks a guest whether its model is ready, on a separate socket: the guest replies while its model executes.

Rules (PB src/python_be.cc): there is one query at a time, and callers that come meanwhile share its reply. A caller
waits five seconds at most; the query stays open.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from naiad_stub.messages import READINESS_REPLIES, ReadinessQuery, pack, unpack
from naiad_stub.wire import WireError

from naiad.core.errors import NotReadyError
from naiad.guests.channel import Channel

logger = logging.getLogger("naiad.workers")

TIMEOUT_SECONDS = 5.0


class ReadinessProbe:
    """The readiness queries to one guest. Everything runs on the event loop's thread."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._channel = Channel(sock, self._loop, self._on_frame, lambda _: self.close())
        self._number = 0
        self._reply: asyncio.Future[str | None] | None = None
        self._is_open = True

    def keep_if(self, is_wanted: bool) -> ReadinessProbe | None:  # noqa: FBT001 - its only argument
        """This object; if *is_wanted* is false None, and the socket is closed."""
        if is_wanted:
            return self
        self.close()
        return None

    async def ask(self) -> None:
        """Return if the model says that it is ready; raise NotReadyError if it is not, or does not reply in time."""
        if not self._is_open:
            raise self._not_ready()
        reply = self._reply
        what = "in-flight" if reply is not None else "user-defined"
        if reply is None:
            self._number += 1
            reply = self._reply = self._loop.create_future()
            self._channel.send(pack(ReadinessQuery(self._number)))
        done, _ = await asyncio.wait([reply], timeout=TIMEOUT_SECONDS)
        if not done:
            raise NotReadyError(f"Timed out waiting for {what} is_ready() response")
        problem = reply.result()
        if problem is not None:
            raise self._not_ready(problem)

    def close(self) -> None:
        """End open queries with "not ready": the guest exits or has exited."""
        self._is_open = False
        self._channel.close()
        self._settle("")

    def _on_frame(self, kind: int, payload: bytes) -> None:
        try:
            message = unpack(READINESS_REPLIES, kind, payload)
        except WireError as error:
            logger.error("'%s' broke the protocol of readiness: %s", self._name, error)  # noqa: TRY400 - the guest's
            self.close()
            return
        if message.number == self._number:
            self._settle(None if message.is_ready else message.problem)

    def _settle(self, problem: str | None) -> None:
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_result(problem)

    def _not_ready(self, problem: str = "") -> NotReadyError:
        message = f"Model '{self._name}' is not ready (user-defined check failed)."
        return NotReadyError(f"{message} {problem}" if problem else message)
