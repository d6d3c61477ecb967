"""DATA that a stream may not send yet, cut into frames as its window opens. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad.frontends.http2.frames import DATA, head
from naiad.frontends.unread_responses import UnreadResponse

Buffer = bytes | bytearray | memoryview

_SMALL = 1 << 12  # bytes of messages that are kept as one part: a view takes as much memory
_PART_SIZE = 256  # bytes of memory that a part takes beside its content


@dataclass(slots=True, eq=False)
class SendBuffer:
    """A stream's unsent bytes, in order, with markers where messages end.

    Parts of messages are kept as views and cut by slicing views, so tensors are not copied.
    """

    _parts: deque[memoryview | _Marker] = field(default_factory=deque)
    _begun: int = 0  # bytes that were taken of the first part, whose memory is kept until its last byte is taken
    kept: int = 0  # bytes of memory that the last part keeps of which all was taken
    size: int = 0
    taken: int = 0  # bytes that were taken out of it so far
    unread: UnreadResponse | None = None  # what it counts in the memory of requests, if anything

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes, about. Many short messages take more than their content."""
        return self.size + self._begun + _PART_SIZE * len(self._parts)

    def count(self) -> None:
        """Count what it takes now in the memory of requests, if it counts there."""
        unread = self.unread
        if unread is not None:
            unread.resize(self.memory)
            if not self._parts:
                self.unread = None

    def release(self) -> None:
        unread, self.unread = self.unread, None
        if unread is not None:
            unread.release()

    def put(self, parts: Sequence[Buffer], size: int, marker: object = None) -> None:
        """Append a message of *size* bytes. `take` returns a *marker* other than None with the message's last byte."""
        for part in parts if size > _SMALL else (b"".join(parts),):
            view = memoryview(part)
            if not view.nbytes:
                continue
            if view.ndim != 1 or view.itemsize != 1:
                view = view.cast("B")
            self._parts.append(view)
            self.size += len(view)
        if marker is not None:
            self._parts.append(_Marker(marker))

    def take(self, stream: int, max_size: int, frame_size: int) -> tuple[list[Buffer], int, list[object]]:
        """Remove at most *max_size* bytes, as pieces of DATA frames with payloads of at most *frame_size*.

        Returns the pieces, their payload bytes together, and the markers of the messages that end in them.
        """
        pieces: list[Buffer] = []
        markers: list[object] = []
        taken = 0
        while self._parts:
            part = self._parts[0]
            if isinstance(part, _Marker):
                markers.append(part.value)
                self._parts.popleft()
                continue
            size = min(max_size - taken, frame_size, self.size)
            if size <= 0:
                break
            pieces.append(head(DATA, 0, stream, size))
            self._take_payload(size, pieces, markers)
            taken += size
        self.taken += taken
        return pieces, taken, markers

    def _take_payload(self, size: int, pieces: list[Buffer], markers: list[object]) -> None:
        self.size -= size
        while size:
            part = self._parts.popleft()
            if isinstance(part, _Marker):
                markers.append(part.value)
                continue
            if len(part) > size:
                pieces.append(part[:size])
                self._parts.appendleft(part[size:])
                self._begun += size
                return
            pieces.append(part)
            size -= len(part)
            self.kept = self._begun + len(part)
            self._begun = 0


@dataclass(frozen=True, slots=True)
class _Marker:
    value: object
