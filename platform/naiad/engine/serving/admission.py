"""Admission: the first stage of every request to a loaded version, of a model as of an ensemble.

A request is rejected here or gets a key. The steps, in this order:

1. A version that cannot serve any more rejects everything.
2. The request is checked against the version's plan. A request whose `layout_key` was seen before, on this load of the
   version, needs no check: its layout is looked up.
3. If the version caches responses and has one for these inputs, that is sent, and the request ends.
4. Otherwise the request starts: `StartRequest` takes it from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Protocol

from naiad_stub.memo import Memo

from naiad.engine.response_cache import CachedResponses
from naiad.errors import NotReadyError
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.request_plan import CheckedLayout, CheckedRequest, RequestPlan, error_prefix

__all__ = ["Admission", "StartRequest"]

_LAYOUT_LIMIT = 1024


class StartRequest(Protocol):
    """Starts a request that was admitted."""

    def __call__(self, key: int, request: InferRequest, sink: Sink, layout: CheckedLayout, alone: bool) -> None:  # noqa: FBT001 - positional: keywords cost time on the request path
        """Start *request*; its responses go to *sink*, possibly before this returns.

        Raises:
            NotReadyError: If the queue is full.
        """


class Admission:
    """Admits requests to one loaded version.

    Attributes:
        plan: The version's plan.
        keys: Numbers of requests, unique within the version. Warm-up samples take theirs here, too.
        reason: Why the version cannot serve any more; empty while it can.
        cache: The version's cached responses; None if it caches none.
    """

    def __init__(self, plan: RequestPlan, start: StartRequest, keys: itertools.count[int]) -> None:
        self.plan = plan
        self.keys = keys
        self.reason = ""
        self.cache: CachedResponses | None = None
        self._start = start
        # Belongs to this load of the version: a new load begins with an empty memo, so no entry can be out of date.
        self._layouts: Memo[Hashable, CheckedLayout] = Memo(_LAYOUT_LIMIT)

    def submit(self, request: InferRequest, sink: Sink, *, alone: bool = False) -> int:
        """Admit a request and start it; its key.

        Args:
            request: The request.
            sink: Gets its responses.
            alone: Only an instance that holds no other request may get it. The request is a call of a model; behind a
                request that calls that model in turn, it would wait forever.

        Raises:
            InvalidRequestError: If it does not fit the model.
            NotReadyError: If the version cannot serve any more, or its queue is full.
        """
        if self.reason:
            raise NotReadyError(f"{error_prefix(request)}model '{self.plan.model_name}' cannot serve: {self.reason}")
        layout = self._layouts.get(request.layout_key)
        if layout is None:
            request, layout = self._check(request)
        key = next(self.keys)
        if self.cache is not None:
            remaining = self.cache.respond(request, sink)
            if remaining is None:
                return key
            sink = remaining
        self._start(key, request, sink, layout, alone)
        return key

    def _check(self, request: InferRequest) -> CheckedRequest:
        checked = self.plan.check(request)
        if checked.layout.is_repeatable and request.layout_key is not None:
            self._layouts[request.layout_key] = checked.layout
        return checked
