"""A host that a test plays: what a guest sends it, decoded, and requests for the guest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from naiad_stub import wire
from naiad_stub.channel import HostGoneError
from naiad_stub.exchange import Batch, RequestRecord
from naiad_stub.request import InferenceRequest


class Entry(NamedTuple):
    """One response of a RESPONSES message."""

    key: int
    flags: int
    text: str
    code: int


class Responses(NamedTuple):
    """One RESPONSES message of responses without tensors."""

    batch: int
    flags: int
    entries: list[Entry]


class FakeChannel:
    """Stands in for `Channel`.

    Attributes:
        sent: Kind and payload of each message, in order.
        ways: How each piece of bytes was sent: "send" or "post".
        released: Input blocks that were released.
        polls: How often it was asked to handle what has arrived.
        on_poll: Called then; plays the host.
        on_wait: Called where a thread would wait.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.ways: list[str] = []
        self.released: list[int] = []
        self.handlers: dict[type, Callable[[Any], None]] = {}
        self.is_gone = False
        self.polls = 0
        self.on_poll: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], None] = lambda: None
        self._reader = wire.FrameReader()

    def add_handler(self, message_class: type, handler: Callable[[Any], None]) -> None:
        self.handlers[message_class] = handler

    def receive_from_host(self, message: Any) -> None:
        """Have the guest handle a message of the host."""
        self.handlers[type(message)](message)

    def send(self, data: bytes) -> None:
        if self.is_gone:
            raise self.gone_error()
        self.ways.append("send")
        self.sent += self._reader.feed(data)

    def post(self, data: bytes) -> None:
        self.ways.append("post")
        self.sent += self._reader.feed(data)

    def gone_error(self) -> HostGoneError:
        return HostGoneError("the host is gone")

    def release_input(self, block: int) -> None:
        self.released.append(block)

    def poll(self) -> None:
        self.polls += 1
        self.on_poll()

    def wait(self, waiter: Any) -> None:
        self.on_wait()
        assert waiter.is_done, "it would wait for ever"

    def finish(self, waiter: Any) -> None:
        waiter.is_done = True

    def responses(self) -> list[Responses]:
        """The RESPONSES so far, which are forgotten."""
        found, self.sent = self.sent, []
        return [decoded(payload) for kind, payload in found if kind == wire.Kind.RESPONSES]


def decoded(payload: bytes) -> Responses:
    """A RESPONSES message whose responses have no tensors."""
    number, count, flags, started, ended = wire.RESPONSES_HEAD.unpack_from(payload)
    assert started <= ended
    position = wire.RESPONSES_HEAD.size
    entries = []
    for _ in range(count):
        key, entry_flags, code, blocks, text_size, layout_size = wire.RESPONSE_HEAD.unpack_from(payload, position)
        assert blocks == 0
        position += wire.RESPONSE_HEAD.size
        text = payload[position : position + text_size].decode()
        position += text_size + layout_size
        entries.append(Entry(key, entry_flags, text, code))
    assert position == len(payload)
    return Responses(number, flags, entries)


def batch_of(*keys: int, number: int = 1) -> Batch:
    """A batch of requests without tensors."""
    batch = Batch(number, -1, None)
    for key in keys:
        record = RequestRecord(key, (), batch)
        batch.records.append(record)
        batch.requests.append(InferenceRequest._received(str(key), 0, 0, 0, [], (), "", record))
    return batch
