"""What a guest prints, line by line: logged as it arrives, the last lines of stderr kept for its exit report."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import IO

_LINES_KEPT = 20
_MAX_LINE = 16 << 10
_CHUNK = 1 << 16


class LineReader:
    """Reads one pipe of a guest on the event loop and passes on whole lines.

    Attributes:
        last_lines: The last lines read, oldest first.
    """

    def __init__(self, pipe: IO[bytes], on_line: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
        """Start reading *pipe*; *on_line* is called with each line, without its end."""
        self._pipe = pipe
        self._on_line = on_line
        self._loop = loop
        self._pending = b""
        self.last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
        os.set_blocking(pipe.fileno(), False)
        loop.add_reader(pipe.fileno(), self._readable)

    def close(self) -> None:
        """Read what is still there and close the pipe."""
        if self._pipe.closed:
            return
        while self._read():
            pass
        self._end()

    def _readable(self) -> None:
        if self._read() is None:
            self._end()

    def _read(self) -> bool | None:
        """Read what is there; False if nothing is, None at the end."""
        try:
            data = os.read(self._pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _MAX_LINE:
            lines.append(self._pending)
            self._pending = b""
        for line in lines:
            self._line(line)
        return True

    def _line(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace").rstrip("\r")
        self.last_lines.append(text)
        self._on_line(text)

    def _end(self) -> None:
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        if self._pending:
            self._line(self._pending)
            self._pending = b""
