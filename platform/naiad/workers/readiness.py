"""Asking a guest whether its model is ready, on a socket of its own: the guest answers while its model executes.

Rules (PB src/python_be.cc): one question at a time; who asks meanwhile shares its answer; nobody waits longer than
five seconds, while the question stays open.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from naiad_stub.messages import READINESS_REPLIES, ReadinessQuery, pack, unpack
from naiad_stub.wire import WireError

from naiad.errors import NotReadyError
from naiad.workers.channel import Channel

logger = logging.getLogger("naiad.workers")

PATIENCE_SECONDS = 5.0


class ReadinessProbe:
    """The questions to one guest. Everything runs on the event loop's thread."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._channel = Channel(sock, self._loop, self._take, lambda _: self.close())
        self._number = 0
        self._answer: asyncio.Future[str | None] | None = None
        self._is_open = True

    def kept_if(self, is_wanted: bool) -> ReadinessProbe | None:  # noqa: FBT001 - its only argument
        """This, if the model answers such questions; else None, and the socket is closed."""
        if is_wanted:
            return self
        self.close()
        return None

    async def ask(self) -> None:
        """Have the model say whether it is ready.

        Raises:
            NotReadyError: If it is not, or does not say so in time.
        """
        if not self._is_open:
            raise self._not_ready()
        answer = self._answer
        what = "in-flight" if answer is not None else "user-defined"
        if answer is None:
            self._number += 1
            answer = self._answer = self._loop.create_future()
            self._channel.send(pack(ReadinessQuery(self._number)))
        done, _ = await asyncio.wait([answer], timeout=PATIENCE_SECONDS)
        if not done:
            raise NotReadyError(f"Timed out waiting for {what} is_ready() response")
        problem = answer.result()
        if problem is not None:
            raise self._not_ready(problem)

    def close(self) -> None:
        """The guest is gone, or ends: whoever waits is told that it is not ready."""
        self._is_open = False
        self._channel.close()
        self._settle("")

    def _take(self, kind: int, payload: bytes) -> None:
        try:
            reply = unpack(READINESS_REPLIES, kind, payload)
        except WireError as error:
            logger.error("'%s' broke the protocol of readiness: %s", self._name, error)  # noqa: TRY400 - the guest's
            self.close()
            return
        if reply.number == self._number:
            self._settle(None if reply.is_ready else reply.problem)

    def _settle(self, problem: str | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(problem)

    def _not_ready(self, problem: str = "") -> NotReadyError:
        message = f"Model '{self._name}' is not ready (user-defined check failed)."
        return NotReadyError(f"{message} {problem}" if problem else message)
