"""Copies of requests for other targets, whose responses are dropped: copies neither slow nor fail the caller."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

import triton_python_backend_utils as pb_utils

from naiad_remote.caller import Caller
from naiad_remote.errors import CallError
from naiad_remote.wire import WireRequest


class Shadow:
    """Sends copies, a bounded number at a time; further ones are dropped and counted."""

    def __init__(self, caller: Caller, share: float, in_flight: int, random: Callable[[], float]) -> None:
        self._caller = caller
        self._share = share  # part of the requests that is copied, from 0 to 1
        self._random = random  # at least 0 and less than 1
        self._free = threading.BoundedSemaphore(in_flight)
        self._threads = ThreadPoolExecutor(in_flight, "remote-shadow")

    def offer(self, request: WireRequest) -> None:
        """Send a copy, if the request is in the share and there is room. Called after the caller's own response."""
        if self._random() >= self._share:
            return
        if not self._free.acquire(blocking=False):
            self._caller.metrics[0].on_dropped()
            return
        try:
            self._threads.submit(self._send, request.copy())
        except BaseException:
            self._free.release()
            raise

    def close(self) -> None:
        """Wait for the copies in flight, which their time limit ends."""
        self._threads.shutdown(wait=True)
        self._caller.close()

    def _send(self, request: WireRequest) -> None:
        try:
            for _ in self._caller.call(request, []):
                pass
        except CallError:
            pass  # counted by its cause
        except Exception as error:  # noqa: BLE001 - of a copy, whose response is not used
            pb_utils.Logger.log_warn(f"a copy of a request failed: {error!r}")
        finally:
            self._free.release()
