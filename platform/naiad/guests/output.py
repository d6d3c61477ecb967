"""What a guest prints and logs: passed on line by line, at a limited rate and in short steps.

A model may print as much as it likes, by mistake or on purpose, and each line that is logged costs the event loop about
20 us. So there are three bounds. `GuestLog` passes on a number of lines a second, and counts the lines beyond it. It
passes on a few of them in one turn of the loop. A `LineReader` cuts long lines, and always empties its pipe: a guest
whose lines are dropped is not blocked.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from naiad.core import clock

_LINES_KEPT = 20
_MAX_LINE = 16 << 10
_CHUNK = 8 << 10  # bytes read in a turn of the loop while lines are logged: at most 4096 lines of two bytes
_DROP_CHUNK = 64 << 10  # the same while all lines are dropped, which costs little: as much as a pipe holds
# Bytes read at the end of a guest: the most that a pipe holds (fcntl(2), F_SETPIPE_SZ). A process that the guest left
# behind may write without end.
_MAX_REST = 1 << 20
_LINES_A_TURN = 50
_LINES_AT_END = 1000  # lines that `close` passes on itself; the rest follow in later turns
_MAX_WAITING = 4 << 20  # bytes of lines that may wait for a later turn
_LINE_OVERHEAD = 200  # bytes that a waiting line costs beside its text
_BURST_SECONDS = 10
# A line counts once, and once more for each so many bytes: the rate limits lines and bytes by one number.
_BYTES_A_TOKEN = 256
_REPORT_SECONDS = 1.0


class TokenBucket:
    """How much may happen in a time: *rate* a second in the long run, ten times as much at once.

    The caller passes the time, so that tests need not wait.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._capacity = self._tokens = rate * _BURST_SECONDS
        self._filled = now

    def take(self, count: float, now: float) -> bool:
        """Take *count* tokens if there are any; what is taken beyond the contents is paid back by waiting."""
        self._tokens = min(self._capacity, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= count
        return True

    def is_empty(self, now: float) -> bool:
        return self._tokens + (now - self._filled) * self._rate < 1


class GuestLog:
    """The log of one guest: what it prints and what its model logs, in the order of arrival.

    *rate* lines a second are passed on, 0 for any number. *on_dropped* is called about once a second while lines are
    dropped, with their number and their bytes.
    """

    def __init__(self, rate: int, on_dropped: Callable[[int, int], None], loop: asyncio.AbstractEventLoop) -> None:
        self._bucket = TokenBucket(rate, clock.monotonic()) if rate else None
        self._on_dropped = on_dropped
        self._loop = loop
        self._waiting: deque[tuple[int, Callable[..., object], tuple[Any, ...]]] = deque()
        self._bytes_waiting = 0
        self._passed = 0  # lines in this turn of the loop
        self._is_scheduled = False
        self._lines_dropped = self._bytes_dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_backlog(self) -> bool:
        return bool(self._waiting)

    @property
    def is_dropping(self) -> bool:
        return self._bucket is not None and self._bucket.is_empty(clock.monotonic())

    def put(self, size: int, function: Callable[..., object], *args: Any) -> bool:
        """Call *function* for a line of *size* bytes, now or in a later turn; False if the line is dropped."""
        bucket = self._bucket
        if self._bytes_waiting > _MAX_WAITING or not (
            bucket is None or bucket.take(1 + size // _BYTES_A_TOKEN, clock.monotonic())
        ):
            self.drop(1, size)
            return False
        self._schedule_turn()
        if self._waiting or self._passed >= _LINES_A_TURN:
            self._waiting.append((size, function, args))
            self._bytes_waiting += size + _LINE_OVERHEAD
            return True
        self._passed += 1
        function(*args)
        return True

    def drop(self, lines: int, size: int) -> None:
        self._lines_dropped += lines
        self._bytes_dropped += size
        if self._timer is None:
            self._timer = self._loop.call_later(_REPORT_SECONDS, self._report)

    def close(self) -> None:
        """Pass on lines that wait, most of them at once, and report dropped ones."""
        self._pass_on(_LINES_AT_END)
        if self._timer is not None:
            self._timer.cancel()
            self._report()

    def _schedule_turn(self) -> None:
        """Have the lines of this turn forgotten in the next one, and waiting lines passed on."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._passed = 0
        self._is_scheduled = False
        self._pass_on(_LINES_A_TURN)

    def _pass_on(self, count: int) -> None:
        waiting = self._waiting
        if waiting:
            # Also if no line is left after these: those that arrive later in this turn have to wait for the next.
            self._schedule_turn()
        for _ in range(min(count, len(waiting))):
            size, function, args = waiting.popleft()
            self._bytes_waiting -= size + _LINE_OVERHEAD
            self._passed += 1
            function(*args)

    def _report(self) -> None:
        self._timer = None
        lines, self._lines_dropped = self._lines_dropped, 0
        size, self._bytes_dropped = self._bytes_dropped, 0
        self._on_dropped(lines, size)


class LineReader:
    """Reads one pipe of a guest on the event loop and passes on whole lines."""

    def __init__(
        self, pipe: IO[bytes], on_line: Callable[[str], None], log: GuestLog, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start reading *pipe*; *on_line* is called with each line that *log* passes on, without its end."""
        self._pipe = pipe
        self._on_line = on_line
        self._log = log
        self._loop = loop
        self._pending = b""
        self._is_skipping = False  # the rest of a line that was cut
        # The last lines read, oldest first, those that were dropped included.
        self.last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
        os.set_blocking(pipe.fileno(), False)
        loop.add_reader(pipe.fileno(), self._readable)

    def close(self) -> None:
        if self._pipe.closed:
            return
        rest = _MAX_REST
        while rest > 0:
            size = self._read(_DROP_CHUNK)
            if not size:
                break
            rest -= size
        self._end()

    def _readable(self) -> None:
        if self._log.has_backlog:
            return  # this is called again in the next turn
        if self._read(_DROP_CHUNK if self._log.is_dropping else _CHUNK) == 0:
            self._end()

    def _read(self, most: int) -> int | None:
        """Read up to *most* bytes; their number, 0 at the end, None if nothing is there."""
        try:
            data = os.read(self._pipe.fileno(), most)
        except BlockingIOError:
            return None
        size = len(data)
        if self._is_skipping:
            _, end, data = data.partition(b"\n")
            self._is_skipping = not end
        block, end, rest = data.rpartition(b"\n")
        if end:
            self._lines(self._pending + block)
            self._pending = rest
        else:
            self._pending += rest
        if len(self._pending) > _MAX_LINE:
            self._lines(self._pending)
            self._pending = b""
            self._is_skipping = True
        return size

    def _lines(self, block: bytes) -> None:
        """Pass on the lines of *block*, which has no end of line at its end."""
        last = block.rsplit(b"\n", _LINES_KEPT)
        self.last_lines.extend(_text(line) for line in last[-_LINES_KEPT:])
        start = 0
        is_dropping = self._log.is_dropping
        while start <= len(block):
            if is_dropping:  # all the rest at once
                self._log.drop(block.count(b"\n", start) + 1, len(block) - start)
                return
            end = block.find(b"\n", start)
            if end < 0:
                end = len(block)
            line = block[start : min(end, start + _MAX_LINE + 1)]
            is_dropping = not self._log.put(len(line), self._pass_on, line)
            start = end + 1

    def _pass_on(self, line: bytes) -> None:
        self._on_line(_text(line))

    def _end(self) -> None:
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        if self._pending:
            self._lines(self._pending)
            self._pending = b""


def _text(line: bytes) -> str:
    if len(line) > _MAX_LINE:
        return f"{line[:_MAX_LINE].decode('utf-8', 'replace')} ... [the line is cut after {_MAX_LINE} bytes]"
    return line.decode("utf-8", "replace").rstrip("\r")


def describe_dropped(lines: int, size: int, rate: int) -> str:
    """The report of dropped lines in words; *rate* is that of `GuestLog`."""
    limit = f"more than {rate} a second (--guest-log-rate)" if rate else "more than the server can log"
    return f"{lines} lines ({size} bytes) of its output were dropped: {limit}"
