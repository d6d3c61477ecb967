"""Ends calls whose time is over or whose client has gone: threads that block in a socket cannot look themselves."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, List, Optional, Set

from naiad_remote.errors import CallError, Cause

_SECONDS = 0.02  # how often calls are examined: a client that goes is noticed after twice that at most


class Limit:
    """The end of one call: its deadline, and its clients."""

    __slots__ = ("_abort", "_clients", "_lock", "cause", "deadline", "ended_by", "seconds")

    def __init__(self, seconds: float, cause: Cause, clients: List[Callable[[], bool]], began: float) -> None:
        self.seconds = seconds
        self.cause = cause  # TIMEOUT or REQUEST_TIMEOUT: what passing the deadline means
        self.deadline = began + seconds  # on the clock of `time.monotonic`; infinite for none
        self.ended_by: Optional[Cause] = None  # why the call was aborted; None while it was not
        self._clients = clients
        self._abort: Optional[Callable[[], None]] = None
        self._lock = threading.Lock()

    def rest(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def pause(self) -> None:
        """Let no time pass for the call, which has got a response, until it is resumed."""
        self.deadline = math.inf

    def resume(self) -> None:
        """Begin to wait for the next response."""
        self.deadline = time.monotonic() + self.seconds

    def error(self, target: object) -> CallError:
        """The error of a call of *target* that has to end."""
        if self.ended_by is Cause.CANCELLED:
            return CallError(Cause.CANCELLED, "Request was cancelled", "CANCELLED")
        return CallError(self.cause, f"cannot call {target}: no response within {self.seconds:g} s")

    def attach(self, abort: Callable[[], None]) -> None:
        """Have *abort* called when the call has to end; at once, if that is so already."""
        with self._lock:
            self._abort = abort
            if self.ended_by is not None:
                abort()

    def detach(self) -> None:
        """Do not call the function any more; when this returns, it is not running."""
        with self._lock:
            self._abort = None

    def examine(self, now: float) -> None:
        """Abort the call if it has to end."""
        if self.ended_by is not None:
            return
        if now >= self.deadline:
            ended: Optional[Cause] = self.cause
        elif self._clients and all(is_cancelled() for is_cancelled in self._clients):
            ended = Cause.CANCELLED
        else:
            return
        with self._lock:
            self.ended_by = ended
            if self._abort is not None:
                self._abort()


class Watch:
    """One thread that examines all calls in flight; without any, it sleeps."""

    def __init__(self) -> None:
        self._limits: Set[Limit] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="remote-watch", daemon=True)
        self._thread.start()

    def add(self, limit: Limit) -> None:
        with self._changed:
            self._limits.add(limit)
            if len(self._limits) == 1:
                self._changed.notify()

    def remove(self, limit: Limit) -> None:
        with self._changed:
            self._limits.discard(limit)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._limits and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
            # Calls are mostly over before they are examined for the first time.
            time.sleep(_SECONDS)
            with self._changed:
                limits = list(self._limits)
            now = time.monotonic()
            for limit in limits:
                limit.examine(now)
