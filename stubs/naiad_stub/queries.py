"""Queries of a model to the server, other than calls: its metrics, and loading and unloading of models.

A query is a subject, such as "model.load", with named fields. Any thread may send one, from before the model is
imported; a thread that waits for the reply takes part in reading the channel. The host replies to every query, with an
error if it does not know the subject.
"""

from __future__ import annotations

import itertools
from typing import Dict, Mapping

from naiad_stub.channel import Channel, Waiter
from naiad_stub.messages import Query, Reply, pack


class QueryError(Exception):
    """The server replied with an error.

    Attributes:
        message: Its text, in the form models read it.
        code: Number of its code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class _PendingReply(Waiter):
    """The thread that waits for a reply, and the reply once it is there."""

    __slots__ = ("code", "is_ok", "text")

    def __init__(self) -> None:
        super().__init__()
        self.is_ok = False
        self.code = 0
        self.text = ""


class ServerQueries:
    """Queries the server on behalf of one model instance.

    Attributes:
        instance_name: The instance, for errors.
        channel: The channel to the host.
    """

    def __init__(self, channel: Channel, instance_name: str) -> None:
        self.instance_name = instance_name
        self.channel = channel
        self._numbers = itertools.count(1)
        self._pending: Dict[int, _PendingReply] = {}
        channel.add_handler(Reply, self._on_reply)

    def send(self, subject: str, fields: Mapping[str, str]) -> str:
        """Send a query and return the text of its reply.

        Raises:
            QueryError: If the reply is an error.
        """
        number = next(self._numbers)
        pending = self._pending[number] = _PendingReply()
        try:
            self.channel.send(pack(Query(number, subject, dict(fields))))
            self.channel.wait(pending)
        finally:
            self._pending.pop(number, None)
        if not pending.is_ok:
            raise QueryError(error_text(self.instance_name, pending.text), pending.code)
        return pending.text

    def _on_reply(self, reply: Reply) -> None:
        """Hand a reply to the thread that waits for it; called on the thread that reads the channel."""
        pending = self._pending.get(reply.number)
        if pending is not None:
            pending.is_ok, pending.code, pending.text = reply.is_ok, reply.code, reply.text
            self.channel.finish(pending)


def error_text(instance_name: str, message: str) -> str:
    """An error of the server in the reference's words for models (PB src/python_be.cc)."""
    return f"Failed to process the request for model '{instance_name}', message: {message}"
