"""What a stream has to send and may not yet: cut into frames as windows open. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from naiad.frontends.http2.frames import DATA, head

Buffer = bytes | bytearray | memoryview


class Outbox:
    """Bytes in order, with marks of where messages end.

    Attributes:
        size: Bytes in it.
    """

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: deque[memoryview | _Mark] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, parts: Iterable[Buffer], mark: object = None) -> None:
        """Add a message; *mark* is given back once it is taken, unless it is None."""
        for part in parts:
            view = memoryview(part)
            if not view.nbytes:
                continue
            if view.ndim != 1 or view.itemsize != 1:
                view = view.cast("B")
            self._parts.append(view)
            self.size += len(view)
        if mark is not None:
            self._parts.append(_Mark(mark))

    def take(self, stream: int, most: int, frame_size: int) -> tuple[list[Buffer], int, list[object]]:
        """At most *most* bytes in frames of at most *frame_size*, how many they are, and marks of what is over."""
        frames: list[Buffer] = []
        marks: list[object] = []
        taken = 0
        while self._parts:
            if isinstance(self._parts[0], _Mark):
                marks.append(self._parts.popleft().value)  # type: ignore[union-attr] # just looked
                continue
            size = min(most - taken, frame_size, self.size)
            if size <= 0:
                break
            frames.append(head(DATA, 0, stream, size))
            self._cut(size, frames, marks)
            taken += size
        return frames, taken, marks

    def _cut(self, size: int, frames: list[Buffer], marks: list[object]) -> None:
        self.size -= size
        while size:
            part = self._parts.popleft()
            if isinstance(part, _Mark):
                marks.append(part.value)
                continue
            if len(part) > size:
                frames.append(part[:size])
                self._parts.appendleft(part[size:])
                return
            frames.append(part)
            size -= len(part)


class _Mark:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value
