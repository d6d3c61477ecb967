"""Settings of the engine, made from the server's options by `app`."""

from __future__ import annotations

from dataclasses import dataclass, field

from naiad.config.model.gpu_placement import GpuPlacement
from naiad.config.server.metrics_options import MetricsConfig
from naiad.models.repository.repositories import Repositories


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of the engine.

    Attributes:
        server_id: The server's name.
        is_explicit: Whether models are loaded and unloaded on request only.
        poll_seconds: How often the repositories are polled for changes; None for never.
        is_demand: Whether models are loaded by their first request unless their configuration says otherwise.
        demand_load_timeout: Seconds that a request waits for its model to be loaded on demand.
        demand_idle_seconds: Seconds without requests after which such a model is unloaded; 0 for never.
        models_memory: Bytes that all guests may use together before idle models leave; 0 for any.
        startup_models: With `is_explicit`, the models to load at the start; `("*",)` is all.
        strict_config: Whether a configuration must be complete (--disable-auto-complete-config).
        strict_readiness: Whether the server is ready only if all its models are.
        gpus: Where instance groups for GPUs are placed; by default the GPUs of this machine.
        config_name: Preferred configuration under `configs/`.
        load_threads: How many models load at once.
        load_retries: How often a failed load is retried.
        metrics: Which durations of requests are measured.
        counts_latencies: Whether the durations of requests are counted for quantiles over short times.
        response_cache_size: Capacity of the response cache in bytes; 0 disables it.
        exit_timeout: Seconds for requests in flight and guests to finish when the server exits.
    """

    server_id: str = "triton"
    repositories: Repositories = field(default_factory=Repositories)
    is_explicit: bool = False
    poll_seconds: int | None = None
    is_demand: bool = False
    demand_load_timeout: float = 60.0
    demand_idle_seconds: float = 0.0
    models_memory: int = 0
    startup_models: tuple[str, ...] = ()
    strict_config: bool = False
    strict_readiness: bool = True
    gpus: GpuPlacement | None = None
    config_name: str = ""
    load_threads: int = 4
    load_retries: int = 0
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    counts_latencies: bool = False
    response_cache_size: int = 0
    exit_timeout: float = 30.0
