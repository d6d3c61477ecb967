"""Options of a server in this process.

They are converted to flags of the command line, and parsed as such. So the same checks, defaults and notices apply as
in `naiad serve`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from naiad.config.server.command_line import read_options
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.core.errors import NaiadError
from naiad.core.logs import LogSettings, escapes_messages
from naiad_embedded.inprocess.enums import InstanceGroupKind, LogFormat, ModelControlMode, RateLimitMode
from naiad_embedded.inprocess.errors import InvalidArgumentError, as_triton_error

_PROGRAM = "naiad.Server"


@dataclass(slots=True)
class RateLimiterResource:
    """The count of a rate limiter's resource on a device; -1 means every device."""

    name: str
    count: int
    device: int = -1


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """The fraction of a device's memory that models may use."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """Options of a server, checked when it starts. Names and defaults are those of the `tritonserver` package.

    Attributes:
        flags: Additional flags of the command line, such as `["--env-store=/var/naiad"]`; the package has no such
            field.
    """

    model_repository: str | Path | list[str] | list[Path] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)
    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000
    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    flags: Sequence[str] = ()


class OptionFields(TypedDict, total=False):
    """The fields of `Options` as arguments, so that type checkers report what it does not have."""

    model_repository: str | Path | list[str] | list[Path]
    server_id: str
    model_control_mode: ModelControlMode
    startup_models: list[str]
    strict_model_config: bool
    rate_limiter_mode: RateLimitMode
    rate_limiter_resources: list[RateLimiterResource]
    pinned_memory_pool_size: int
    cuda_memory_pool_sizes: dict[int, int]
    cache_config: dict[str, dict[str, Any]]
    cache_directory: str
    min_supported_compute_capability: float
    exit_on_error: bool
    strict_readiness: bool
    exit_timeout: int
    buffer_manager_thread_count: int
    model_load_thread_count: int
    model_load_retry_count: int
    model_namespacing: bool
    enable_peer_access: bool
    log_file: str | None
    log_info: bool
    log_warn: bool
    log_error: bool
    log_format: LogFormat
    log_verbose: int
    metrics: bool
    gpu_metrics: bool
    cpu_metrics: bool
    metrics_interval: int
    backend_directory: str
    repo_agent_directory: str
    model_load_device_limits: list[ModelLoadDeviceLimit]
    backend_configuration: dict[str, dict[str, str]]
    host_policies: dict[str, dict[str, str]]
    metrics_configuration: dict[str, dict[str, str]]
    flags: Sequence[str]


# The flags that take a field's value as it is; how it is written follows from the type of the field's default.
_FLAGS = {
    "server_id": "id",
    "cache_directory": "cache-directory",
    "backend_directory": "backend-directory",
    "repo_agent_directory": "repoagent-directory",
    "pinned_memory_pool_size": "pinned-memory-pool-byte-size",
    "min_supported_compute_capability": "min-supported-compute-capability",
    "exit_timeout": "exit-timeout-secs",
    "buffer_manager_thread_count": "buffer-manager-thread-count",
    "model_load_thread_count": "model-load-thread-count",
    "model_load_retry_count": "model-load-retry-count",
    "metrics_interval": "metrics-interval-ms",
    "strict_model_config": "disable-auto-complete-config",
    "exit_on_error": "exit-on-error",
    "strict_readiness": "strict-readiness",
    "model_namespacing": "model-namespacing",
    "enable_peer_access": "enable-peer-access",
    "metrics": "allow-metrics",
    "gpu_metrics": "allow-gpu-metrics",
    "cpu_metrics": "allow-cpu-metrics",
    "cache_config": "cache-config",
    "backend_configuration": "backend-config",
    "host_policies": "host-policy",
    "metrics_configuration": "metrics-config",
}


def server_options(options: Options) -> ServerOptions:
    """The options as those of a server; HTTP and gRPC are disabled, because the program starts services itself.

    TypeError if a value has the wrong type, TritonError if it is invalid.
    """
    flags = ["--allow-http=false", "--allow-grpc=false", *_flags(options), *options.flags]
    try:
        found, others = split_arguments(flags, SERVER_FLAGS, _PROGRAM)
        if others:
            raise InvalidArgumentError(f"Options.flags: expected a flag, got '{others[0]}'")
        return read_options(found, environ=os.environ)
    except NaiadError as error:
        raise as_triton_error(error) from error


def log_settings(options: Options) -> LogSettings | None:
    """The settings of the log; each level enables the more severe ones. None leaves logging to the program."""
    verbose = options.log_verbose
    info = options.log_info or verbose > 0
    warn = options.log_warn or info
    error = options.log_error or warn
    if not error:
        return None
    return LogSettings(
        verbose=verbose,
        info=info,
        warning=warn,
        error=error,
        iso8601=options.log_format is LogFormat.ISO8601,
        escape=escapes_messages(os.environ),
        file=Path(options.log_file) if options.log_file else None,
    )


def _flags(options: Options) -> Iterator[str]:
    """The repositories, and all options whose value is not the default, as flags."""
    if options.model_repository is None:
        raise InvalidArgumentError("Model repository must be specified.")
    repositories = options.model_repository
    for repository in repositories if isinstance(repositories, list | tuple) else [repositories]:
        yield f"--model-repository={_checked('model_repository', repository, str, Path)}"
    defaults = Options()
    for name, flag in sorted(_FLAGS.items()):
        value, default = getattr(options, name), getattr(defaults, name)
        if value == default:
            continue
        if name == "strict_model_config":
            yield f"--{flag}"
        elif isinstance(default, str):
            yield f"--{flag}={_checked(name, value, str, Path)}"
        elif isinstance(default, bool):
            yield f"--{flag}={str(bool(value)).lower()}"
        elif isinstance(default, dict):
            yield from _settings(flag, value)
        else:
            yield f"--{flag}={_checked(name, value, int, float)}"
    yield from _control(options)
    yield from _limits(options)


def _settings(flag: str, groups: dict[str, dict[str, Any]]) -> Iterator[str]:
    for group, settings in groups.items():
        for key, value in settings.items():
            yield f"--{flag}={group}{',' if group else ''}{key}={value}"


def _control(options: Options) -> Iterator[str]:
    mode = _checked("model_control_mode", options.model_control_mode, ModelControlMode)
    yield f"--model-control-mode={mode.name.lower()}"
    if mode is ModelControlMode.EXPLICIT:  # in other modes, the package ignores it, and the command line rejects it
        for name in options.startup_models:
            yield f"--load-model={_checked('startup_models', name, str)}"


def _limits(options: Options) -> Iterator[str]:
    if options.rate_limiter_mode is RateLimitMode.EXEC_COUNT:
        yield "--rate-limit=execution_count"
    for resource in options.rate_limiter_resources:
        device = "" if resource.device < 0 else f":{resource.device}"
        yield f"--rate-limit-resource={resource.name}:{resource.count}{device}"
    for number, size in options.cuda_memory_pool_sizes.items():
        yield f"--cuda-memory-pool-byte-size={number}:{size}"
    for limit in options.model_load_device_limits:
        if limit.kind is InstanceGroupKind.GPU:
            yield f"--model-load-gpu-limit={limit.device}:{limit.fraction}"


def _checked(name: str, value: Any, *types: type) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"Options.{name} must be {' or '.join(kind.__name__ for kind in types)}, not {value!r}")
    return value
