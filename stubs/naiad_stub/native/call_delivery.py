"""Delivers the results of a backend's calls to other models, on separate threads.

ServerInferAsync returns at once, and the backend may then block in code that Python does not see. So no thread of the
backend can be counted on to read the channel. While calls are in progress, one of these threads takes part in reading
it: the watching one. Without calls, they all sleep and do not read the channel: a reader of the channel would have to
wake the thread that runs the model for each request.

The watching thread calls the backend back with a result. The backend may wait there, for another call or for one that
it makes in the callback. So before a callback another thread begins to watch if other calls are open, which means that
their last result was not taken yet. During a callback one begins to watch as soon as the backend makes a call. Where
calls are made one after the other, as most are, one thread takes care of all.

Only a message wakes a thread that waits for the socket. So each result has to be taken by the thread that reads it, or
by one that is awake: a call is prepared for its results before it is sent, and the thread that has delivered a result
of a stream looks for the next ones itself.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Deque, List, Optional

from naiad_stub import wire
from naiad_stub.calls import HostCalls, PendingCall
from naiad_stub.channel import Channel, HostGoneError, Waiter
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse

OnResult = Callable[[Optional[InferenceResponse], int, bool], None]
"""Called with a result, None for the end of a stream alone; the version of the model that answered, -1 if none did; and
whether it is the last result."""
MAX_THREADS = 64
"""As many callbacks may wait for other calls at the same time, but for one."""


class _AwaitedCall:
    """A call and what its results are passed to.

    Attributes:
        is_open: Whether its last result was not taken yet.
    """

    __slots__ = ("_armed", "call", "is_open", "on_result")

    def __init__(self, call: PendingCall, on_result: OnResult) -> None:
        self.call = call
        self.on_result = on_result
        self.is_open = True
        self._armed: List[None] = []

    def arm(self, notify: Callable[[], None]) -> None:
        """Have *notify* called with the next result, once, unless `disarm` comes first."""
        self._armed.append(None)
        self.call.notify = notify

    def disarm(self) -> bool:
        """Whether the caller is the first since `arm`: it is the one to deliver."""
        try:
            self._armed.pop()
        except IndexError:
            return False
        return True


class CallDelivery:
    """Calls back with the results of calls. Those of one call are delivered in order, one after the other."""

    def __init__(self, channel: Channel, calls: HostCalls) -> None:
        self._channel = channel
        self._calls = calls
        self._ready: Deque[_AwaitedCall] = deque()
        self._waiter: Optional[Waiter] = None  # of the watching thread
        self._wake = threading.Semaphore(0)  # one count for each sleeping thread that is to watch
        self._lock = threading.Lock()  # guards what follows
        self._open = 0  # calls
        self._threads = 0
        self._asleep = 0
        self._is_watched = False

    def start(self, request: InferenceRequest, on_start: Callable[[PendingCall], None], on_result: OnResult) -> None:
        """Start a call, and have *on_result* called with each of its results.

        Args:
            request: What to run.
            on_start: Called with the call before it is sent.
            on_result: Called on a thread of this object.

        Raises:
            TritonModelException: If the model cannot call now.
        """
        with self._lock:
            self._open += 1
            self._ensure_watched()

        def prepare(call: PendingCall) -> None:
            on_start(call)
            self._arm(_AwaitedCall(call, on_result))

        try:
            self._calls.start(request, prepare)
        except BaseException:
            self._close_one()
            raise

    def _ensure_watched(self) -> None:
        """Have a thread watch, if none does and there may be another one. The caller holds the lock."""
        if self._is_watched:
            return
        if self._asleep:
            self._asleep -= 1
            self._is_watched = True
            self._wake.release()
        elif self._threads < MAX_THREADS:
            self._threads += 1
            self._is_watched = True
            threading.Thread(target=self._run, name=f"naiad-calls-{self._threads}", daemon=True).start()

    def _arm(self, awaited: _AwaitedCall) -> None:
        def notify() -> None:
            """Called on the thread that reads the result, which is either the watching one or keeps it waiting."""
            if not awaited.disarm():
                return
            self._ready.append(awaited)
            waiter = self._waiter
            if waiter is not None:
                self._channel.finish(waiter)

        awaited.arm(notify)

    def _run(self) -> None:
        try:
            while True:
                awaited = self._watch()
                if awaited is not None:
                    self._deliver(awaited)
                self._rest()
        except HostGoneError:
            return

    def _watch(self) -> Optional[_AwaitedCall]:
        """Read the channel until a call has a result; None if no call is open any more."""
        while True:
            with self._lock:
                self._waiter = waiter = Waiter()  # first: a result that arrives after the next line finishes it
                if self._ready or not self._open:
                    self._waiter = None
                    self._is_watched = False
                    if not self._ready:
                        return None
                    awaited = self._ready.popleft()
                    if awaited.call.is_ended:
                        awaited.is_open = False
                        self._open -= 1
                    if self._open > awaited.is_open:
                        self._ensure_watched()
                    return awaited
            self._channel.wait(waiter)

    def _deliver(self, awaited: _AwaitedCall) -> None:
        """Pass on what has arrived."""
        call = awaited.call
        while True:
            while call.arrived:
                head = wire.RESULT_HEAD.unpack_from(call.arrived[0])
                version, is_last = head[2], bool(head[3] & wire.FINAL)
                response = self._calls.next_result(call)[0]
                if is_last and awaited.is_open:
                    self._close_one()
                awaited.on_result(None if response._parameters is None else response, version, is_last)
                if is_last:
                    return
                self._calls.report_consumed(call, 1)
            self._arm(awaited)
            if not call.arrived or not awaited.disarm():
                return

    def _close_one(self) -> None:
        with self._lock:
            self._open -= 1
            waiter = None if self._open else self._waiter
        if waiter is not None:  # the thread that watches has nothing to watch any more
            self._channel.finish(waiter)

    def _rest(self) -> None:
        """Sleep until this thread is to watch: at once if calls are open and no other thread does."""
        with self._lock:
            if self._open and not self._is_watched:
                self._is_watched = True
                return
            self._asleep += 1
        self._wake.acquire()
