"""How sockets share the event loop: a share of each turn for each one that has more work than that.

A client may send thousands of requests or frames in one packet. If the loop handled all of them at once, no other
client would get an answer until it is done: one connection that pipelined small requests made others wait for five of
six seconds. So a connection handles what it received only for `SHARE_SECONDS`. Then it stops reading its socket, keeps
the rest, and calls `LoopTurns.defer`. The loop reads all other sockets before it resumes that connection. The sockets
of guests and of other processes of the server have shares too: one read of them may bring hundreds of responses.

    deadline = 0.0
    while ...:  # pieces of what was received
        handle(piece)
        if more_follows:
            now = clock.perf_counter()
            if not deadline:
                deadline = now + SHARE_SECONDS
            elif now >= deadline:
                pause_reading()  # and keep the rest
                turns.defer(resume)
                break

The first piece needs no clock, so a client that sends one request and waits for its response pays nothing.

A socket whose reads fill the whole buffer needs a pause too: libuv reads it up to 32 times in one turn, before any
other socket.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from naiad.core import clock

SHARE_SECONDS = 0.002
"""Time that one connection may use before others get theirs. It includes what its requests cost until they are answered
or handed to a guest."""
TURN_SECONDS = 0.004
"""Time that all deferred sockets together may use in one turn of the loop. It bounds how long any number of busy
connections delays the others: by this and one share."""

_turns: dict[asyncio.AbstractEventLoop, LoopTurns] = {}
_turns_lock = threading.Lock()  # servers of one process may start in threads of their own


def turns_of(loop: asyncio.AbstractEventLoop) -> LoopTurns:
    """The turns of a loop: one object for all its sockets, so that the bound holds for all of them together."""
    turns = _turns.get(loop)
    if turns is None:
        with _turns_lock:
            for closed in [other for other in _turns if other.is_closed()]:
                del _turns[closed]
            turns = _turns[loop] = LoopTurns(loop)
    return turns


class LoopTurns:
    """Resumes connections that have used up their share, in the order in which they were deferred."""

    __slots__ = ("_deferred", "_is_scheduled", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._deferred: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def __repr__(self) -> str:
        return f"<LoopTurns deferred={len(self._deferred)}>"

    def defer(self, resume: Callable[[], None]) -> None:
        """Call *resume* in a later turn of the loop, after the sockets that are readable now were read."""
        self._deferred.append(resume)
        self._schedule()

    def _schedule(self) -> None:
        if self._deferred and not self._is_scheduled:
            self._is_scheduled = True
            # The loop runs what is scheduled during a turn only after it has polled the sockets once more.
            self.loop.call_soon(self._run)

    def _run(self) -> None:
        deadline = clock.perf_counter() + TURN_SECONDS
        try:
            # Each connection at most once: one that is deferred again meanwhile waits for the next turn.
            for _ in range(len(self._deferred)):
                self._deferred.popleft()()
                if clock.perf_counter() >= deadline:
                    break
        finally:
            self._is_scheduled = False
            self._schedule()
