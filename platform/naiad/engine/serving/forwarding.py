"""Forwarding: the short way of requests whose bytes go to the guest, and back, as they came.

Another process of the server lays the inputs of a request out as the guest expects them, and takes outputs as the
guest wrote them. What is left here is to choose the guest, to count, and to replace two heads. So requests of the usual
kind pass through without an `InferRequest`, tensors, or an `InferResponse`. They are, all of them:

- for a model whose requests are neither batched, delayed, cached nor rate limited, and whose responses need no change;
- of a layout that was checked before, with inputs of few bytes, at most an id and a trace context, and no parameters;
- dispatched at once, because an instance is free.

Every other request takes the long way (`Admission.admit`). A request that was forwarded is tracked like all others:
it can be cancelled, it is found by the detection of deadlocks, and is queued again when its guest exits. Where such a
rare event needs the request itself, `OpenRequest` has its source make it.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from naiad.engine.open_request import ForwardedRequest, OpenRequest
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.requests_in_flight import RequestsInFlight
from naiad.protocol.request_plan import CheckedLayout

logger = logging.getLogger("naiad.engine")


class Forwarding:
    """Forwards requests to the guests of one loaded version."""

    def __init__(self, admission: Admission, in_flight: RequestsInFlight) -> None:
        scheduler = in_flight.forwarding_scheduler
        assert scheduler is not None
        self._scheduler = scheduler
        self._admission = admission
        self._in_flight = in_flight

    def known_layout(self, layout_key: Hashable, input_byte_size: int) -> CheckedLayout | None:
        """The layout of requests with that key, if requests with so many bytes of inputs can be forwarded."""
        layout = self._admission.known_layout(layout_key)
        if layout is None or layout.packed is None or layout.packed[2] != input_byte_size:
            return None
        return layout

    def forward(self, forwarded: ForwardedRequest, layout: CheckedLayout) -> OpenRequest | None:
        """Send a request to a guest; None if it has to take the long way. *layout* is `known_layout` of this load."""
        if self._admission.looks_at_requests:
            return None
        worker = self._scheduler.dispatch_at_once()
        if worker is None:
            return None
        pending = OpenRequest(None, None, False, forwarded)
        pending.worker = worker
        self._in_flight.track(pending, layout)
        assert layout.packed is not None
        _, _, request_id, inputs, context = forwarded
        try:
            worker.forward(
                pending.key, request_id, layout.packed[0], inputs, layout.batch_size, pending.queued, context
            )
        except Exception:  # the long way is checked at every step, and finds out what is wrong
            logger.exception("cannot forward a request to '%s'", worker.spec.name)
            self._in_flight.untrack(pending)
            self._scheduler.undo_dispatch(worker, ())
            return None
        return pending
