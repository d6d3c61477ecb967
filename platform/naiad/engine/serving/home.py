"""Requests to a version whose only instances are in another process of the server, their home."""

from __future__ import annotations

import asyncio

from naiad.core.errors import NotReadyError
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.branches import Branches, wait_again
from naiad.engine.serving.tracker import RequestTracker
from naiad.protocol.inference import InferRequest, Sink

__all__ = ["HomeRequests"]

_SENT_AT_ONCE = 64
"""Requests that have waited which are sent in one turn of the event loop."""
_AGAIN_SECONDS = 0.002


class HomeRequests:
    """Sends the requests of a version to its home.

    They wait in the home's queue. While its process is started again they wait here, in the order of their arrival; the
    limits and timeouts of the version's queue hold in both places. They are refused if that fails again and again.
    """

    def __init__(self, admission: Admission, tracker: RequestTracker, branches: Branches) -> None:
        """Send the requests of one version.

        Args:
            admission: Of the version.
            tracker: Of the version; it has no instances.
            branches: The home.
        """
        assert branches.home is not None
        self._home = branches.home
        self._admission = admission
        self._tracker = tracker
        self._branches = branches
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Handle | None = None
        self._is_closed = False
        branches.take_back = self._take_back
        branches.on_reported = self._on_reported

    def submit(self, request: InferRequest, sink: Sink, *, needs_idle: bool = False) -> int:
        """See `Admission.submit`."""
        if self._admission.reason or len(self._tracker) or self._is_closed or not self._branches.is_running:
            return self._admission.submit(request, sink, needs_idle=needs_idle)
        self._admission.require_valid(request)
        key = next(self._admission.keys)
        self._branches.send(self._home, key, request, sink, needs_idle=needs_idle)
        return key

    def close(self) -> None:
        """Send nothing any more: the version ends."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    def _on_reported(self) -> None:
        if self._is_closed:
            return
        reason = self._admission.reason = self._branches.reason
        if reason and not self._branches.is_running:
            model = self._admission.plan.model_name
            self._tracker.fail_waiting(NotReadyError(f"model '{model}' cannot serve: {reason}"))
        self._send_soon()

    def _send_soon(self) -> None:
        """Send the requests that wait here, if the home runs."""
        if self._sending is None and not self._is_closed and len(self._tracker) and self._branches.is_running:
            self._sending = self._loop.call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._sending = None
        for pending in self._tracker.first(_SENT_AT_ONCE):
            if not self._branches.is_running:
                break
            self._tracker.give_away(pending)
            self._branches.send(self._home, pending.key, pending.request, pending.sink, needs_idle=True)
        self._send_soon()

    def _take_back(self, key: int, request: InferRequest, sink: Sink) -> None:
        """The home's process does not have the version: the request waits here until it does."""
        is_waiting = wait_again(self._admission, key, request, sink)
        if is_waiting and self._sending is None and not self._is_closed:
            self._sending = self._loop.call_later(_AGAIN_SECONDS, self._send_waiting)
