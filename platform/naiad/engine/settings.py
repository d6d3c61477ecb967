"""Settings of the engine, made from the server's options by `app`."""

from __future__ import annotations

from dataclasses import dataclass, field

from naiad.config.model.gpu_placement import GpuPlacement
from naiad.config.server.metrics_options import MetricsConfig
from naiad.models.repository.repositories import Repositories


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of the engine."""

    server_id: str = "triton"
    repositories: Repositories = field(default_factory=Repositories)
    is_explicit: bool = False
    poll_seconds: int | None = None  # how often the repositories are polled for changes; None for never
    # Whether models are loaded by their first request unless their configuration says otherwise.
    is_demand: bool = False
    demand_load_timeout: float = 60.0
    demand_idle_seconds: float = 0.0  # seconds without requests after which such a model is unloaded; 0 for never
    models_memory: int = 0  # bytes that all guests may use together before idle models leave; 0 for any
    startup_models: tuple[str, ...] = ()  # with `is_explicit`, the models to load at the start; `("*",)` is all
    strict_config: bool = False  # whether a configuration must be complete (--disable-auto-complete-config)
    strict_readiness: bool = True
    gpus: GpuPlacement | None = None  # where instance groups for GPUs are placed; by default the GPUs of this machine
    config_name: str = ""  # preferred configuration under `configs/`
    load_threads: int = 4
    load_retries: int = 0
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    counts_latencies: bool = False  # whether the durations of requests are counted for quantiles over short times
    response_cache_size: int = 0
    exit_timeout: float = 30.0  # seconds for requests in flight and guests to finish when the server exits
