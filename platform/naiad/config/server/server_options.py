"""What a server was asked to do, as one frozen value."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path

from naiad.config.server.backend_settings import BackendConfigs, PythonSettings
from naiad.config.server.metrics_options import MetricsOptions
from naiad.config.server.openai_options import OpenAiOptions
from naiad.config.server.prewarm import PrewarmOption
from naiad.config.server.rate_options import ResourceLimit
from naiad.config.server.restrictions import Restrictions
from naiad.config.server.tls import TlsFiles
from naiad.config.server.trace_options import TraceOptions

__all__ = ["LogFormat", "ModelControlMode", "ServerOptions"]


class ModelControlMode(enum.Enum):
    """Who decides which models are loaded."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class LogFormat(enum.Enum):
    """How a line of the log starts."""

    DEFAULT = "default"
    ISO8601 = "ISO8601"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the server was asked to do. Fields are named as their flags unless a comment says more.

    Attributes:
        server_id: `--id`.
        model_repositories: `--model-repository`, each once; a URI is text, all others are paths.
        auto_complete: Models may complete their configuration.
        load_models: `--load-model`, in order, each once; `("*",)` is all.
        backend_directories: Where backends are looked for, in order, those that ship with naiad last.
        backend_configs: `--backend-config` by backend; settings for all under "".
        python_settings: The settings of backend `python`, checked.
        grpc_max_connection_age: In milliseconds; 0 is for ever.
        grpc_max_connection_age_grace: In milliseconds; 0 is as long as the calls take.
        env_store: Where environments are unpacked.
        env_directories: `--env-directory`, in order.
        trace: `--trace-config` and the flags it replaces.
        response_cache_size: Bytes of `--cache-config=local,size=`; 0 for no cache.
        metrics: `--metrics-config`.
        openai: The flags of OpenAI's API; None unless `--openai-port` is given.
        resource_limits: `--rate-limit-resource`; None unless `--rate-limit=execution_count`.
        http_restrictions: `--http-restricted-api`; `grpc_restrictions` is `--grpc-restricted-protocol`.
        http_forward: `--http-header-forward-pattern`; `grpc_forward` likewise.
        http_tls: Files of `--http-use-ssl`; `grpc_tls` of `--grpc-use-ssl`.
        given: Flags as given, in order, for the log.
        notices: Sentences about flags that were accepted without effect, to be logged.
        warnings: Sentences about deprecated flags, to be logged.
    """

    model_repositories: tuple[Path | str, ...]
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    load_models: tuple[str, ...] = ()
    repository_poll_secs: int = 15
    model_namespacing: bool = False
    model_config_name: str = ""
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    server_id: str = "triton"
    exit_on_error: bool = True
    exit_timeout_secs: int = 30
    strict_readiness: bool = True
    auto_complete: bool = True
    allow_http: bool = True
    http_address: str = "0.0.0.0"  # noqa: S104 - the reference's default
    http_port: int = 8000
    reuse_http_port: bool = False
    http_max_input_size: int = 64 << 20
    http_restrictions: Restrictions = field(default_factory=dict)
    http_forward: re.Pattern[str] | None = None
    http_tls: TlsFiles | None = None
    ui: bool = False
    max_header_bytes: int = 64 << 10
    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"  # noqa: S104
    grpc_port: int = 8001
    reuse_grpc_port: bool = False
    grpc_restrictions: Restrictions = field(default_factory=dict)
    grpc_forward: re.Pattern[str] | None = None
    grpc_tls: TlsFiles | None = None
    grpc_infer_response_compression_level: str = "none"
    grpc_keepalive_time: int = 7_200_000
    grpc_keepalive_timeout: int = 20_000
    grpc_keepalive_permit_without_calls: bool = False
    grpc_http2_max_pings_without_data: int = 2
    grpc_http2_min_recv_ping_interval_without_data: int = 300_000
    grpc_http2_max_ping_strikes: int = 2
    grpc_max_connection_age: int = 0
    grpc_max_connection_age_grace: int = 0
    allow_client_shm: bool = False
    resource_limits: tuple[ResourceLimit, ...] | None = None
    response_cache_size: int = 0
    trace: TraceOptions = field(default_factory=TraceOptions)
    openai: OpenAiOptions | None = None
    allow_metrics: bool = True
    metrics_address: str = "0.0.0.0"  # noqa: S104
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    metrics_port: int = 8002
    allow_cpu_metrics: bool = True
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: LogFormat = LogFormat.DEFAULT
    log_file: Path | None = None
    backend_directories: tuple[Path, ...] = ()
    backend_configs: BackendConfigs
    python_settings: PythonSettings = field(default_factory=PythonSettings)
    env_store: Path
    env_store_max_bytes: int = 0
    env_directories: tuple[Path, ...] = ()
    env_trust: Path | None = None
    env_require_digest: bool = False
    prewarm: PrewarmOption = field(default_factory=PrewarmOption)
    busy_poll_us: int = -1
    stub_restart_limit: int = 5
    stub_restart_window_secs: int = 60
    given: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def openai_shares_http(self) -> bool:
        """Whether OpenAI's API is served on the port of HTTP."""
        place = (self.http_address, self.http_port)
        return self.openai is not None and self.allow_http and (self.openai.address, self.openai.port) == place

    @property
    def guest_store(self) -> Path:
        """Where the default guest is laid out, beside the environments."""
        return self.env_store / "guests"
