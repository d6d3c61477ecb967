"""Admission: the first stage of every request to a loaded version, of a model as of an ensemble.

The steps, in this order:

1. A version that cannot serve rejects everything, and a version whose guests exited refuses requests that ended them.
2. The request is checked against the version's plan. A request whose `layout_key` was seen before, on this load of the
   version, needs no check: its layout is looked up.
3. If the version caches responses and has one for these inputs, that is sent, and the request ends.
4. Otherwise the request starts: `StartRequest` takes it from here.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Protocol

from naiad_stub.memo import Memo

from naiad.core.errors import NaiadError, NotReadyError, fresh, unexpected_error
from naiad.engine.open_request import OpenRequest
from naiad.engine.response_cache import CachedResponses
from naiad.engine.serving.fatal_requests import FatalRequestGuard
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.request_plan import CheckedLayout, CheckedRequest, RequestPlan, error_prefix

logger = logging.getLogger("naiad.engine")

_LAYOUT_LIMIT = 1024


class StartRequest(Protocol):
    """Starts a request that was admitted."""

    def __call__(self, opened: OpenRequest, layout: CheckedLayout, /) -> None:
        """Start a request, which may have its last response before this returns; NotReadyError if the queue is full."""


class Admission:
    """Admits requests to one loaded version."""

    def __init__(self, plan: RequestPlan, start: StartRequest, statistics: Statistics) -> None:
        self.plan = plan
        self.cache: CachedResponses | None = None  # the version's cached responses; None if it caches none
        self._start = start
        self._statistics = statistics
        self._reason = ""
        self._fatal: FatalRequestGuard | None = None
        self._is_guarded = False  # whether `_guard` has to see requests: one look on the request path for both reasons
        # Belongs to this load of the version: a new load begins with an empty memo, so no entry can be out of date.
        self._layouts: Memo[Hashable, CheckedLayout] = Memo(_LAYOUT_LIMIT)

    @property
    def reason(self) -> str:
        return self._reason

    @reason.setter
    def reason(self, reason: str) -> None:
        self._reason = reason
        self._is_guarded = bool(reason) or self._fatal is not None

    @property
    def looks_at_requests(self) -> bool:
        """Whether every request has to be looked at now, also one whose layout is known."""
        return self._is_guarded or self.cache is not None

    def known_layout(self, layout_key: Hashable) -> CheckedLayout | None:
        """The layout of requests with that key, which holds as long as the version; None if none was checked."""
        return self._layouts.get(layout_key)

    def guard_with(self, fatal: FatalRequestGuard) -> None:
        """Refuse the requests that *fatal* refuses, for as long as it remembers any."""
        self._fatal = fatal
        self._is_guarded = True

    def require_valid(self, request: InferRequest) -> None:
        """Check a request that another process is to execute, as if it were submitted."""
        try:
            if self._layouts.get(request.layout_key) is None:
                self._check(request)
        except NaiadError as error:
            self._statistics.on_refusal(error)
            raise

    def start(self, opened: OpenRequest) -> None:
        if self._reason:
            raise self._not_serving(opened.request)
        request, layout = self._check(opened.request)
        opened.request = request
        self._start(opened, layout)

    def admit(self, opened: OpenRequest) -> None:
        """Admit a request and start it.

        InvalidRequestError if it does not fit the model, NotReadyError if it cannot be served now or the queue is full,
        another NaiadError if requests like this one ended several guests, or it fails in a way that it should not.
        """
        try:
            request = opened.request
            if self._is_guarded:
                opened.sink = self._guard(request, opened.sink)
            layout = self._layouts.get(request.layout_key)
            if layout is None:
                request, layout = self._check(request)
                opened.request = request
            if self.cache is not None and request.device is None:  # else the server has not all bytes
                remaining = self.cache.respond(request, opened.sink)
                if remaining is None:
                    opened.release()
                    return
                opened.sink = remaining
            self._start(opened, layout)
        except NaiadError as error:
            self._statistics.on_refusal(error)
            raise
        except Exception as error:  # every caller handles a NaiadError: a client, a model, or an ensemble waits for it
            logger.exception("cannot submit a request to '%s'", self.plan.model_name)
            problem = unexpected_error(f"submit the request to '{self.plan.model_name}'", error)
        else:
            return
        self._statistics.on_refusal(problem)
        raise fresh(problem)  # outside the handler: as its context, the error would keep the request's tensors

    def _guard(self, request: InferRequest, sink: Sink) -> Sink:
        if self._reason:
            raise self._not_serving(request)
        assert self._fatal is not None
        self._fatal.forget_old()
        if not self._fatal:
            self._fatal = None
            self._is_guarded = False
            return sink
        return self._fatal.admit(request, sink)

    def _not_serving(self, request: InferRequest) -> NotReadyError:
        return NotReadyError(f"{error_prefix(request)}model '{self.plan.model_name}' cannot serve: {self._reason}")

    def _check(self, request: InferRequest) -> CheckedRequest:
        checked = self.plan.check(request)
        if checked.layout.is_repeatable and request.layout_key is not None:
            self._layouts[request.layout_key] = checked.layout
        return checked
