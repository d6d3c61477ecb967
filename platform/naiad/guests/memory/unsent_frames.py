"""Frames that wait until the inputs they are about are in a segment: for a guest, or for the owner of the models.

A copy takes about 0.5 ms for each MiB. So long inputs are copied in slices, one in each turn of the event loop. What is
sent to a guest meanwhile waits behind the batch that is copied: its cancellation, later batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from naiad.protocol.inference import Buffer

COPIED_AT_ONCE = 4 << 20  # bytes of inputs of a batch that are copied in one piece
_SLICE = 1 << 20  # several guests may copy at the same time, each its slice of a turn

InputCopy = tuple[memoryview, Buffer]  # where an input goes, and its bytes


class _Frames(NamedTuple):
    data: bytes
    number: int
    copies: list[tuple[memoryview, memoryview]]


class UnsentFrames:
    """Frames in order; the first one waits for its inputs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes, int], None],
        on_failed: Callable[[int, Exception], None],
    ) -> None:
        """*send* gets frames, and the number of the batch or request that they are, 0 for others.

        *on_failed* gets the number of a batch or request whose inputs cannot be copied, and the error; its frames are
        not sent.
        """
        self._loop = loop
        self._send = send
        self._on_failed = on_failed
        # The frames. The same object always: the request path looks whether it is empty.
        self.waiting: deque[_Frames] = deque()

    @property
    def batches(self) -> list[int]:
        return [frames.number for frames in self.waiting if frames.number]

    def put(self, data: bytes, number: int = 0, copies: list[InputCopy] | None = None) -> None:
        """Send *data* behind what waits, once *copies* are made; *number* if it is a batch or a request."""
        views = [(target, memoryview(source)) for target, source in copies or () if len(source)]
        self.waiting.append(_Frames(data, number, views))
        if len(self.waiting) == 1:
            self._loop.call_soon(self._copy_slice)

    def clear(self) -> None:
        """Send nothing of it: the guest is gone, and its segment will be."""
        self.waiting.clear()

    def _copy_slice(self) -> None:
        left = _SLICE
        while self.waiting:
            first = self.waiting[0]
            try:
                left = _copy(first.copies, left)
            except Exception as error:  # noqa: BLE001 - handled by the caller; what waits behind it must still be sent
                self.waiting.popleft()
                first.copies.clear()
                self._on_failed(first.number, error)
                continue
            if first.copies:
                self._loop.call_soon(self._copy_slice)
                return
            self.waiting.popleft()
            self._send(first.data, first.number)


def _copy(copies: list[tuple[memoryview, memoryview]], most: int) -> int:
    """Make copies, up to *most* bytes, and remove what is done; how many bytes may still be copied."""
    while copies and most:
        target, source = copies[-1]
        count = min(most, len(source))
        target[:count] = source[:count]
        most -= count
        if count == len(source):
            copies.pop()
        else:
            copies[-1] = target[count:], source[count:]
    return most
