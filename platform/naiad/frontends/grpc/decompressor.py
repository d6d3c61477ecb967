"""The messages of one call whose client compresses them: decompressed one after the other, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from naiad.core.errors import InvalidRequestError
from naiad.frontends.decompression import (
    SHORT_INPUT,
    SHORT_OUTPUT,
    Decompression,
    DecompressionTask,
    DecompressionThreads,
)
from naiad.frontends.grpc.messages import MAX_MESSAGE_SIZE, CompressedMessage, Encoding, Message

_COST = 1 << 13  # what a message costs at least, in bytes of output that take as long
_COPIED_BELOW = 1 << 16  # shorter messages become immutable bytes, as those that arrive uncompressed


@dataclass(slots=True, eq=False)
class MessageDecompressor:
    """Decompresses what a call receives."""

    _encoding: Encoding
    _threads: DecompressionThreads
    _deliver: Callable[[list[Message], bool], None]  # messages, and whether they are the last
    _on_step: Callable[[], bool]  # called when `held_size` has changed; returns False to stop until `resume`
    _on_failed: Callable[[str], None]
    _waiting: deque[Message | CompressedMessage] = field(default_factory=deque)
    _has_ended: bool = False
    _current: Decompression | None = None
    _task: DecompressionTask | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a message is decompressed on a thread, so that further messages wait."""
        return self._task is not None

    @property
    def held_size(self) -> int:
        """Bytes of the messages that are not delivered yet."""
        waiting = sum(len(_data(message)) for message in self._waiting)
        return waiting + (0 if self._current is None else self._current.held_size)

    def feed(self, messages: Sequence[Message | CompressedMessage], *, ended: bool) -> None:
        """Accept messages; *ended* after the last one."""
        self._waiting.extend(messages)
        self._has_ended = self._has_ended or ended
        if self._current is None:
            self._continue()

    def resume(self) -> None:
        if self._task is not None:
            self._task.resume()

    def cancel(self) -> None:
        self._waiting.clear()
        self._has_ended = False
        self._current = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _continue(self) -> None:
        allowance = SHORT_OUTPUT  # of work on the event loop: thousands of messages may arrive together
        while self._waiting and self._current is None:
            message = self._waiting.popleft()
            if isinstance(message, CompressedMessage):
                allowance -= self._begin(message.data, allowance)
            else:
                self._deliver([message], False)
        if self._has_ended and self._current is None:
            self._has_ended = False
            self._deliver([], True)

    def _begin(self, data: Message, allowance: int) -> int:
        """Decompress a message here, if that takes little, else on a thread; return what it cost of *allowance*."""
        self._current = current = Decompression(data, self._encoding, MAX_MESSAGE_SIZE, "message")
        cost = 0
        if len(data) <= SHORT_INPUT and allowance > 0:
            try:
                current.step(allowance)
            except InvalidRequestError as error:
                self._fail(error)
                return 0
            cost = current.size + _COST
            if current.is_complete:
                self._finish(current.result)
                return cost
        self._task = self._threads.start(current, lambda _: self._on_step(), self._on_done, self._fail)
        return cost

    def _on_done(self, message: bytearray) -> None:
        self._task = None
        self._finish(message)
        self._continue()

    def _finish(self, message: bytearray) -> None:
        self._current = None
        self._deliver([bytes(message) if len(message) < _COPIED_BELOW else message], False)

    def _fail(self, error: Exception) -> None:
        self._task = None
        text = error.message if isinstance(error, InvalidRequestError) else repr(error)
        self._on_failed(f"Unexpected error decompressing data for algorithm {self._encoding}: {text}")


def _data(message: Message | CompressedMessage) -> Message:
    return message.data if isinstance(message, CompressedMessage) else message
