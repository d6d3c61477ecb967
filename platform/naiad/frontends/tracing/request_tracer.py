"""What frontends know of traces: whether requests may be traced, and the settings that clients change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from naiad.engine.facade import EngineFacade
from naiad.protocol.inference import InferRequest, Sink, SubmittedRequest


class RequestTracer(Protocol):
    """Submits requests, and traces some of them."""

    is_on: bool  # whether any request may be traced; the others need no `submit`

    def submit(
        self, engine: EngineFacade, request: InferRequest, sink: Sink, protocol: str, headers: Mapping[str, str]
    ) -> SubmittedRequest:
        """Submit a request, traced if it is sampled or has a trace context.

        *protocol* is `HTTP` or `GRPC`; *headers* are those among `PROPAGATED_HEADERS`.
        """

    def settings(self, model: str = "") -> Mapping[str, str | list[str]]:
        """The settings that apply to all models or to one, in the form that clients receive."""

    async def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Set fields of `TraceConfig` for all models (*model* is "") or for one.

        None resets a field: a model's to the setting for all models, that to the flags'. InvalidRequestError if tracing
        is enabled without a rate or a file.
        """

    def reopen(self) -> None:
        """Begin a new trace file if the file has been renamed or removed since it was opened."""

    def close(self) -> None:
        """Write or export all pending traces."""
