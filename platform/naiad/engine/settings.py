"""What the engine takes from the server's options."""

from __future__ import annotations

from dataclasses import dataclass, field

from naiad.config.server.metrics_options import MetricsConfig
from naiad.repository.repositories import Repositories


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine takes from the server's options.

    Attributes:
        server_id: The server's name.
        repositories: Model repositories.
        is_explicit: Whether models are loaded and unloaded on request only.
        poll_seconds: How often the repositories are looked at for changes; None for never.
        startup_models: With `is_explicit`, the models to load at the start; `("*",)` is all.
        strict_config: Whether a configuration must be complete (--disable-auto-complete-config).
        strict_readiness: Whether the server is ready only if all its models are.
        config_name: Preferred configuration under `configs/`.
        load_threads: How many models load at once.
        load_retries: How often loading a version is tried again.
        metrics: What is measured of how long requests take.
        response_cache_size: How many bytes of responses are kept; 0 for no cache.
        exit_timeout: Seconds that requests in flight and guests have when the server stops.
    """

    server_id: str = "triton"
    repositories: Repositories = field(default_factory=Repositories)
    is_explicit: bool = False
    poll_seconds: int | None = None
    startup_models: tuple[str, ...] = ()
    strict_config: bool = False
    strict_readiness: bool = True
    config_name: str = ""
    load_threads: int = 4
    load_retries: int = 0
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    response_cache_size: int = 0
    exit_timeout: float = 30.0
