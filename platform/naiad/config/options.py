"""The server's options: every flag parsed once into a frozen value.

What each flag means, and whether it has an effect, stands in `flags`. Here the rest is decided: defaults that depend
on the machine, and which flags exclude each other.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import platformdirs

import naiad
from naiad.config.backend_settings import BackendConfigs, PythonSettings, effective_settings, parse_backend_configs
from naiad.config.flag import Flag, UsageError
from naiad.config.flags import SERVER_FLAGS
from naiad.config.getopt import split
from naiad.config.given import GivenFlags
from naiad.errors import OptionError

__all__ = [
    "LogFormat",
    "ModelControlMode",
    "ServerOptions",
    "UsageError",
    "options_from",
    "parse_options",
    "shipped_backends",
]

DEFAULT_BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")

_CHANNEL_ARGUMENTS = {
    "grpc-keepalive-time": "grpc.keepalive_time_ms",
    "grpc-keepalive-timeout": "grpc.keepalive_timeout_ms",
    "grpc-keepalive-permit-without-calls": "grpc.keepalive_permit_without_calls",
    "grpc-http2-max-pings-without-data": "grpc.http2.max_pings_without_data",
    "grpc-http2-min-recv-ping-interval-without-data": "grpc.http2.min_ping_interval_without_data_ms",
    "grpc-http2-max-ping-strikes": "grpc.http2.max_ping_strikes",
    "grpc-max-connection-age": "grpc.max_connection_age_ms",
    "grpc-max-connection-age-grace": "grpc.max_connection_age_grace_ms",
}


class ModelControlMode(enum.Enum):
    """Who decides which models are loaded."""

    NONE = "none"
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
        auto_complete: Models may complete their configuration.
        load_models: `--load-model`, in order, each once; `("*",)` is all.
        backend_directories: Where backends are looked for, in order, those that ship with naiad last.
        backend_configs: `--backend-config` by backend; settings for all under "".
        python_settings: The settings of backend `python`, checked.
        grpc_channel_arguments: The flags of keep-alive and connection age as arguments of a gRPC channel.
        env_store: Where environments are unpacked.
        given: Flags as given, in order, for the log.
        notices: Sentences about flags that were accepted without effect, to be logged.
        warnings: Sentences about deprecated flags, to be logged.
    """

    model_repositories: tuple[Path, ...]
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    load_models: tuple[str, ...] = ()
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
    max_header_bytes: int = 64 << 10
    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"  # noqa: S104
    grpc_port: int = 8001
    reuse_grpc_port: bool = False
    grpc_channel_arguments: tuple[tuple[str, int], ...] = ()
    allow_metrics: bool = True
    metrics_address: str = "0.0.0.0"  # noqa: S104
    metrics_port: int = 8002
    metrics_interval_ms: float = 2000
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
    stub_restart_limit: int = 5
    stub_restart_window_secs: int = 60
    given: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def guest_store(self) -> Path:
        """Where the default guest is laid out, beside the environments."""
        return self.env_store / "guests"


def parse_options(
    arguments: Sequence[str], *, environ: Mapping[str, str] | None = None, program: str = "tritonserver"
) -> ServerOptions:
    """Parse a server's command line, without the program's name.

    Raises:
        UsageError: If it cannot be understood.
        OptionError: If it asks for what cannot be, or what this version does not do.
    """
    found, others = split(arguments, SERVER_FLAGS, program)
    if others:
        raise UsageError(f"Unexpected argument: {others[0]}")
    return options_from(found, environ=os.environ if environ is None else environ)


def options_from(found: Sequence[tuple[Flag, str]], *, environ: Mapping[str, str]) -> ServerOptions:
    """The options that some flags with their texts stand for.

    Raises:
        UsageError: If a value is not one of its flag.
        OptionError: If flags exclude each other, or ask for what this version does not do.
    """
    given = GivenFlags(found)
    _check_exclusions(given)
    options = _build(given, environ)
    _check_ports(options)
    _check_load_models(options)
    # Last, as for the reference: what else is wrong is found without a repository.
    _check_repositories(options)
    return options


def _build(given: GivenFlags, environ: Mapping[str, str]) -> ServerOptions:
    configs = _backend_configs(given)
    http_address = given.text("http-address")
    return ServerOptions(
        model_repositories=given.paths("model-repository"),
        model_control_mode=ModelControlMode(given.text("model-control-mode")),
        load_models=tuple(dict.fromkeys(given.texts("load-model"))),
        model_config_name=given.text("model-config-name"),
        model_load_thread_count=given.number("model-load-thread-count"),
        model_load_retry_count=given.number("model-load-retry-count"),
        server_id=given.text("id"),
        exit_on_error=given.switch("exit-on-error"),
        exit_timeout_secs=given.number("exit-timeout-secs"),
        strict_readiness=given.switch("strict-readiness"),
        auto_complete=not (given.switch("disable-auto-complete-config") or given.switch("strict-model-config")),
        allow_http=given.switch("allow-http"),
        http_address=http_address,
        http_port=given.number("http-port"),
        reuse_http_port=given.switch("reuse-http-port"),
        http_max_input_size=given.number("http-max-input-size"),
        max_header_bytes=given.number("max-header-bytes"),
        allow_grpc=given.switch("allow-grpc"),
        grpc_address=given.text("grpc-address"),
        grpc_port=given.number("grpc-port"),
        reuse_grpc_port=given.switch("reuse-grpc-port"),
        grpc_channel_arguments=_channel_arguments(given),
        allow_metrics=given.switch("allow-metrics"),
        metrics_address=given.text("metrics-address") or http_address,
        metrics_port=given.number("metrics-port"),
        metrics_interval_ms=given.real("metrics-interval-ms"),
        allow_cpu_metrics=given.switch("allow-cpu-metrics"),
        log_verbose=given.number("log-verbose"),
        log_info=given.switch("log-info"),
        log_warning=given.switch("log-warning"),
        log_error=given.switch("log-error"),
        log_format=LogFormat(given.text("log-format")),
        log_file=Path(given.text("log-file")) if given.text("log-file") else None,
        backend_directories=_backend_directories(given),
        backend_configs=configs,
        python_settings=_python_settings(given, configs),
        env_store=_env_store(given, environ),
        stub_restart_limit=given.number("stub-restart-limit"),
        stub_restart_window_secs=given.number("stub-restart-window-secs"),
        given=given.as_written(),
        notices=given.notices(),
        warnings=(*given.warnings(), *_platform_warnings(environ)),
    )


def _channel_arguments(given: GivenFlags) -> tuple[tuple[str, int], ...]:
    values = ((argument, given.last(name)) for name, argument in _CHANNEL_ARGUMENTS.items())
    return tuple((argument, int(value)) for argument, value in values if value is not None)


def _backend_configs(given: GivenFlags) -> BackendConfigs:
    try:
        return parse_backend_configs(given.texts("backend-config"))
    except OptionError as error:
        raise given.bad("backend-config", error.message) from None


def _python_settings(given: GivenFlags, configs: BackendConfigs) -> PythonSettings:
    try:
        return PythonSettings.parse(effective_settings(configs, "python"))
    except OptionError as error:
        raise given.bad("backend-config", error.message) from None


def _backend_directories(given: GivenFlags) -> tuple[Path, ...]:
    named = given.paths("backend-directory")
    if not named and DEFAULT_BACKEND_DIRECTORY.is_dir():
        named = (DEFAULT_BACKEND_DIRECTORY,)
    return tuple(dict.fromkeys((*named, shipped_backends())))


def shipped_backends() -> Path:
    """The backends that ship with naiad: beside `platform/` in a checkout, inside the package in a wheel."""
    package = Path(naiad.__file__).resolve().parent
    checkout = package.parent.with_name("backends")
    return checkout if package.parent.name == "platform" and checkout.is_dir() else package / "_backends"


def _env_store(given: GivenFlags, environ: Mapping[str, str]) -> Path:
    named = given.text("env-store") or environ.get("NAIAD_STORE", "")
    return Path(named).absolute() if named else platformdirs.user_cache_path("naiad", appauthor=False) / "environments"


def _platform_warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    if environ.get("AIP_MODE") != "PREDICTION":
        return ()
    return (
        (
            "AIP_MODE=PREDICTION is set, but the API of Vertex AI is not implemented in this version of naiad: "
            "HTTP and gRPC are served as the flags say"
        ),
    )


def _check_exclusions(given: GivenFlags) -> None:
    if given.has("response-cache-byte-size") and given.has("cache-config"):
        raise UsageError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    if given.has("model-config-name") and not given.text("model-config-name"):
        raise given.bad("model-config-name", "Error: empty argument for --model-config-name")
    given.check_refusals()


def _check_ports(options: ServerOptions) -> None:
    services = [
        (name, address, port)
        for allowed, name, address, port in (
            (options.allow_http, "HTTP", options.http_address, options.http_port),
            (options.allow_grpc, "GRPC", options.grpc_address, options.grpc_port),
            (options.allow_metrics, "metrics", options.metrics_address, options.metrics_port),
        )
        # Port 0 is any free port, another one for each service.
        if allowed and port
    ]
    for (first, *place), (second, *other) in combinations(services, 2):
        if place == other:
            raise UsageError(
                f"The server cannot listen to {first} requests and {second} requests at the same address and port "
                f"{place[0]}:{place[1]}"
            )


def _check_load_models(options: ServerOptions) -> None:
    if options.load_models and options.model_control_mode is not ModelControlMode.EXPLICIT:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in options.load_models and len(options.load_models) > 1:
        raise OptionError(
            "error: creating server: Invalid argument - Wildcard model name '*' must be the ONLY startup model "
            "if specified at all."
        )


def _check_repositories(options: ServerOptions) -> None:
    if not options.model_repositories:
        raise OptionError("error: creating server: Invalid argument - --model-repository must be specified")
    for repository in map(str, options.model_repositories):
        # Path() has made one slash of two.
        if repository.startswith(("s3:/", "gs:/", "as:/")):
            raise OptionError(
                f"--model-repository={repository.replace(':/', '://', 1)} is refused: repositories in object stores are "
                "not implemented in this version of naiad; mount or copy it to a directory"
            )
