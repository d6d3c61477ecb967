"""What both frontends share beside the engine: one registry of clients' regions, and the like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from naiad.frontends.log_settings import Log, NoLog
from naiad.frontends.regions import ClientRegions
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.model_metrics import ModelMetricFamily


@dataclass(slots=True, kw_only=True)
class Extensions:
    """State of the protocol's extensions, one for all frontends of a server.

    Attributes:
        regions: Shared memory of clients.
        log: The server's log.
        tracer: Who decides which requests are traced.
        model_metrics: The models' own metrics, whenever they are looked at.
    """

    regions: ClientRegions = field(default_factory=ClientRegions)
    log: Log = field(default_factory=NoLog)
    tracer: Tracer = field(default_factory=Tracer)
    model_metrics: Iterable[ModelMetricFamily] = ()
