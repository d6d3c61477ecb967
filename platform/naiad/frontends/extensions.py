"""What the frontends of a server share besides the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from naiad.frontends.log_settings import NullLog, ServerLog
from naiad.frontends.offload.background import Background
from naiad.frontends.refusals import RefusalLog
from naiad.frontends.regions import ClientRegions, RegionRegistry
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.tracing.request_tracer import RequestTracer
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.model_metrics import ModelMetricFamily


class Resumable(Protocol):
    """Work that waits for its turn."""

    def resume(self) -> None:
        """It is its turn."""


@dataclass(slots=True, kw_only=True)
class Extensions:
    """State of the protocol's extensions, one object for all frontends of a server."""

    regions: RegionRegistry = field(default_factory=ClientRegions)
    log: ServerLog = field(default_factory=NullLog)
    tracer: RequestTracer = field(default_factory=Tracer)
    model_metrics: Iterable[ModelMetricFamily] = ()  # the models' own metrics; each iteration gives the current ones
    # Runs what would hold the event loop for too long. The server closes it.
    background: Background = field(default_factory=Background)
    memory: RequestMemory = field(default_factory=RequestMemory)
    refusals: RefusalLog = field(default_factory=RefusalLog)  # logs requests that are refused because of who sends them
    region_readings: deque[Resumable] = field(default_factory=deque)  # long inputs from regions: the first reads
