"""Delivers the results of a backend's calls to other models, on a thread of its own.

ServerInferAsync returns at once, and the backend may then block in code that Python does not see. So no thread of the
backend can be counted on to read the channel. While calls are in progress, this thread takes part in reading it, and
calls the backend back. While there are none it sleeps elsewhere: as a reader of the channel it would have to wake the
thread that runs the model for each request.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Deque, Optional

from naiad_stub import wire
from naiad_stub.calls import HostCalls, PendingCall
from naiad_stub.channel import Channel, HostGoneError, Waiter
from naiad_stub.response import InferenceResponse

OnResult = Callable[[Optional[InferenceResponse], bool], None]
"""Called with a result, None for the end of a stream alone, and whether it is the last one."""


class _AwaitedCall:
    __slots__ = ("call", "on_result")

    def __init__(self, call: PendingCall, on_result: OnResult) -> None:
        self.call = call
        self.on_result = on_result


class CallDelivery:
    """Calls back with the results of calls, in the order in which they arrive."""

    def __init__(self, channel: Channel, calls: HostCalls) -> None:
        self._channel = channel
        self._calls = calls
        self._ready: Deque[_AwaitedCall] = deque()
        self._waiter: Optional[Waiter] = None
        self._started = threading.Semaphore(0)  # one count for each call that begins
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def await_results(self, call: PendingCall, on_result: OnResult) -> None:
        """Have *on_result* called with each result of *call*."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="naiad-calls", daemon=True)
                self._thread.start()
        awaited = _AwaitedCall(call, on_result)
        self._started.release()
        self._arm(awaited)

    def _arm(self, awaited: _AwaitedCall) -> None:
        call = awaited.call

        def notify() -> None:
            self._ready.append(awaited)
            waiter = self._waiter
            if waiter is not None:
                self._channel.finish(waiter)

        call.notify = notify
        # What arrived before `notify` was set has called nothing. Whoever takes it away again is the one to call it.
        if call.arrived and call.notify is not None:
            call.notify = None
            notify()

    def _run(self) -> None:
        active = 0
        try:
            while True:
                while active == 0 or self._started.acquire(blocking=False):
                    if active == 0:
                        self._started.acquire()
                    active += 1
                self._wait()
                while self._ready:
                    active -= self._deliver(self._ready.popleft())
        except HostGoneError:
            return

    def _wait(self) -> None:
        """Read the channel until a call has a result."""
        while not self._ready:
            self._waiter = waiter = Waiter()
            if self._ready:  # before this thread's waiter could be seen
                break
            self._channel.wait(waiter)
        self._waiter = None

    def _deliver(self, awaited: _AwaitedCall) -> int:
        """Pass on what has arrived; the number of calls that ended with it."""
        call = awaited.call
        while call.arrived:
            is_last = bool(wire.RESULT_HEAD.unpack_from(call.arrived[0])[2] & wire.FINAL)
            response = self._calls.next_result(call)[0]
            awaited.on_result(None if response._parameters is None else response, is_last)
            if is_last:
                return 1
            self._calls.report_consumed(call, 1)
        self._arm(awaited)
        return 0
