"""Submits requests as the engine does, for tests of what takes them."""

from __future__ import annotations

from typing import Any

from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.admission import Admission
from naiad.protocol.inference import InferRequest

__all__ = ["WeakRequest", "submit"]


class WeakRequest(InferRequest):
    """One that weak references can refer to, for tests of what keeps it."""


def submit(target: Any, request: InferRequest, sink: Any, *, needs_idle: bool = False) -> OpenRequest:
    """Submit *request* to *target*, a `Target` or an `Admission`; the request in flight."""
    opened = OpenRequest(request, sink, needs_idle)
    (target.admit if isinstance(target, Admission) else target.accept)(opened)
    return opened
