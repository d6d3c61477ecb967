"""Questions of a model to the server, other than calls: its metrics, loading and unloading of models.

Usable from any thread, and from before the model is imported: whoever waits for an answer takes part in reading the
channel. A question that gets no answer, because the server does not know it, does not exist: it refuses what it does
not know.
"""

from __future__ import annotations

import itertools
from typing import Dict, Mapping

from naiad_stub.channel import Channel, Waiter
from naiad_stub.messages import Query, Reply, pack


class RefusedError(Exception):
    """The server's answer is an error.

    Attributes:
        message: Its text, in the form models read it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Answer(Waiter):
    """What a question waits for."""

    __slots__ = ("is_well", "text")

    def __init__(self) -> None:
        super().__init__()
        self.is_well = False
        self.text = ""


class Asking:
    """Asks the server on behalf of one model instance.

    Attributes:
        instance_name: For errors.
        channel: To the host.
    """

    def __init__(self, channel: Channel, instance_name: str) -> None:
        self.instance_name = instance_name
        self.channel = channel
        self._numbers = itertools.count(1)
        self._asked: Dict[int, _Answer] = {}
        channel.add_handler(Reply, self._on_reply)

    def ask(self, what: str, fields: Mapping[str, str]) -> str:
        """Ask and wait for the answer.

        Raises:
            RefusedError: If the answer is an error.
        """
        number = next(self._numbers)
        answer = self._asked[number] = _Answer()
        try:
            self.channel.send(pack(Query(number, what, dict(fields))))
            self.channel.wait(answer)
        finally:
            self._asked.pop(number, None)
        if not answer.is_well:
            raise RefusedError(refusal(self.instance_name, answer.text))
        return answer.text

    def _on_reply(self, reply: Reply) -> None:
        """Hand a reply to the thread that waits for it; called on the thread that reads the channel."""
        answer = self._asked.get(reply.number)
        if answer is not None:
            answer.is_well, answer.text = reply.is_ok, reply.text
            self.channel.finish(answer)


def refusal(instance_name: str, message: str) -> str:
    """An error of the server as the reference words it for models (PB src/python_be.cc)."""
    return f"Failed to process the request for model '{instance_name}', message: {message}"
