"""One stream: a request, its answer, the windows of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.http2.frames import ErrorCode
from naiad.frontends.http2.send_buffer import Buffer, Outbox


class Receiver(Protocol):
    """Whoever answers the request of a stream."""

    def received(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - called for each frame
        """Take the content from *start* to *end* of *data*; *ended* where it was the last."""

    def room(self, size: int) -> memoryview | None:
        """Where at most *size* bytes of content may be read to without a copy; None where they cannot."""

    def filled(self, size: int) -> None:
        """Take content that was read to `room`."""

    def left(self, mark: object) -> None:
        """Note that a message with a mark is in the system's hands."""

    def cancelled(self) -> None:
        """Note that the client does not want the answer any more, or is gone. Nothing is called after this."""


class Answers(Protocol):
    """What a stream asks of its connection."""

    def start(self, stream: Stream, fields: Fields, *, is_constant: bool, ends: bool) -> None:
        """Send fields, the first of an answer or the last."""

    def send(self, stream: Stream, parts: Sequence[Buffer], size: int, mark: object) -> None:
        """Send a message."""

    def finish(self, stream: Stream, trailers: Fields, *, is_constant: bool) -> None:
        """Send trailers once all messages are sent."""

    def respond(self, stream: Stream, fields: Fields, parts: Sequence[Buffer], size: int, trailers: Fields) -> None:
        """Send a whole answer, all of whose fields are constant."""

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Break a stream off."""

    def hold(self, stream: Stream, *, is_held: bool) -> None:
        """Take no more content on a stream than its window lets through, or take it again."""


class _Nobody:
    """The receiver of a stream that has none yet, or no more."""

    def received(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001
        """Drop it."""

    def room(self, size: int) -> memoryview | None:  # noqa: ARG002
        """Nowhere."""
        return None

    def filled(self, size: int) -> None:
        """Drop it."""

    def left(self, mark: object) -> None:
        """Not of interest."""

    def cancelled(self) -> None:
        """Not of interest."""


_NOBODY = _Nobody()


class Stream:
    """The state of a stream; what is sent goes through its connection.

    Attributes:
        number: Its number.
        connection: What it is part of.
        receiver: Who answers.
        send_window: Bytes that the peer takes on it.
        receive_window: Bytes that the peer may send on it.
        is_half_closed: Whether the request is whole.
        is_open: Whether an answer may still be sent.
        is_held: Whether its window shall not be opened further.
        expected: Bytes of content still to come as the request said; negative where it said nothing.
        outbox: What waits to be sent.
        trailers: The fields that follow it, and whether they are constant.
        is_queued: Whether it waits for its turn to send.
    """

    __slots__ = (
        "connection",
        "expected",
        "is_half_closed",
        "is_held",
        "is_open",
        "is_queued",
        "number",
        "outbox",
        "receive_window",
        "receiver",
        "send_window",
        "trailers",
    )

    def __init__(self, number: int, connection: Answers, send_window: int, receive_window: int) -> None:
        self.number = number
        self.connection = connection
        self.receiver: Receiver = _NOBODY
        self.send_window = send_window
        self.receive_window = receive_window
        self.is_half_closed = False
        self.is_open = True
        self.is_held = False
        self.is_queued = False
        self.expected = -1
        self.outbox: Outbox | None = None
        self.trailers: tuple[Fields, bool] | None = None

    def __repr__(self) -> str:
        waiting = self.outbox.size if self.outbox is not None else 0
        return f"<Stream #{self.number} {'open' if self.is_open else 'closed'} unsent={waiting}>"

    def close(self) -> None:
        """Let go of all that belongs to it, the receiver too: the two know each other."""
        self.is_open = False
        self.outbox = None
        self.trailers = None
        self.receiver = _NOBODY

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self.outbox.size if self.outbox is not None else 0
