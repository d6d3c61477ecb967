"""The server's options: every flag parsed once into a frozen value.

What each flag means, and whether it has an effect, stands in `flags`. Here the rest is decided: defaults that depend
on the machine, and which flags exclude each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import naiad
from naiad.config.server.backend_settings import (
    BackendConfigs,
    PythonSettings,
    effective_settings,
    parse_backend_configs,
)
from naiad.config.server.cache_options import parse_cache_size
from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.flags import SERVER_FLAGS
from naiad.config.server.getopt import split
from naiad.config.server.given import GivenFlags
from naiad.config.server.metrics_options import metrics_warnings, parse_metrics_options
from naiad.config.server.openai_options import parse_openai_options
from naiad.config.server.option_checks import check_exclusions, check_options
from naiad.config.server.option_warnings import option_warnings
from naiad.config.server.prewarm import parse_prewarm
from naiad.config.server.rate_options import parse_resource_limits
from naiad.config.server.restrictions import parse_pattern, parse_restrictions
from naiad.config.server.server_options import LogFormat, ModelControlMode, ServerOptions
from naiad.config.server.store_place import StorePlace, find_store
from naiad.config.server.tls import parse_tls
from naiad.config.server.trace_options import parse_trace_options, trace_warnings
from naiad.errors import OptionError

__all__ = [
    "LogFormat",
    "ModelControlMode",
    "ServerOptions",
    "UsageError",
    "environment_store",
    "options_from",
    "parse_options",
    "shipped_backends",
]

DEFAULT_BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")


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
    check_exclusions(given)
    options = _build(given, environ)
    check_options(options)
    return options


def _build(given: GivenFlags, environ: Mapping[str, str]) -> ServerOptions:
    configs, store = _backend_configs(given), find_store(given.text("env-store"), environ)
    http_address = given.text("http-address")
    return ServerOptions(
        model_repositories=given.places("model-repository"),
        model_control_mode=ModelControlMode(given.text("model-control-mode")),
        load_models=tuple(dict.fromkeys(given.texts("load-model"))),
        repository_poll_secs=given.number("repository-poll-secs"),
        model_namespacing=given.switch("model-namespacing"),
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
        ui=given.switch("ui"),
        max_header_bytes=given.number("max-header-bytes"),
        allow_grpc=given.switch("allow-grpc"),
        grpc_address=given.text("grpc-address"),
        grpc_port=given.number("grpc-port"),
        reuse_grpc_port=given.switch("reuse-grpc-port"),
        grpc_infer_response_compression_level=given.text("grpc-infer-response-compression-level"),
        grpc_keepalive_time=given.number("grpc-keepalive-time"),
        grpc_keepalive_timeout=given.number("grpc-keepalive-timeout"),
        grpc_keepalive_permit_without_calls=given.switch("grpc-keepalive-permit-without-calls"),
        grpc_http2_max_pings_without_data=given.number("grpc-http2-max-pings-without-data"),
        grpc_http2_min_recv_ping_interval_without_data=given.number("grpc-http2-min-recv-ping-interval-without-data"),
        grpc_http2_max_ping_strikes=given.number("grpc-http2-max-ping-strikes"),
        grpc_max_connection_age=given.number("grpc-max-connection-age"),
        grpc_max_connection_age_grace=given.number("grpc-max-connection-age-grace"),
        **_access(given),
        allow_client_shm=given.switch("allow-client-shm"),
        resource_limits=parse_resource_limits(given),
        response_cache_size=parse_cache_size(given),
        trace=parse_trace_options(given, environ),
        openai=parse_openai_options(given, environ),
        **_metrics(given, http_address),
        **_log(given),
        backend_directories=_backend_directories(given),
        backend_configs=configs,
        python_settings=_python_settings(given, configs),
        **_environments(given, store),
        prewarm=parse_prewarm(given.text("prewarm")),
        busy_poll_us=given.number("busy-poll-us"),
        stub_restart_limit=given.number("stub-restart-limit"),
        stub_restart_window_secs=given.number("stub-restart-window-secs"),
        given=given.as_written(),
        notices=given.notices(),
        warnings=_warnings(given, environ, store),
    )


def _warnings(given: GivenFlags, environ: Mapping[str, str], store: StorePlace) -> tuple[str, ...]:
    """What is to be said about the options before anything starts."""
    return (
        *given.warnings(),
        *trace_warnings(given),
        *metrics_warnings(given),
        *option_warnings(given),
        *([store.warning] if store.warning else []),
        *_platform_warnings(environ),
    )


def _metrics(given: GivenFlags, http_address: str) -> dict[str, Any]:
    """Fields about metrics."""
    return {
        "allow_metrics": given.switch("allow-metrics"),
        "metrics_address": given.text("metrics-address") or http_address,
        "metrics_port": given.number("metrics-port"),
        "metrics": parse_metrics_options(given),
        "allow_cpu_metrics": given.switch("allow-cpu-metrics"),
    }


def _access(given: GivenFlags) -> dict[str, Any]:
    """Fields about who may reach what, and how."""
    return {
        "http_restrictions": parse_restrictions(given, "http-restricted-api"),
        "http_forward": parse_pattern(given, "http-header-forward-pattern"),
        "http_tls": parse_tls(given, "http"),
        "grpc_restrictions": parse_restrictions(given, "grpc-restricted-protocol"),
        "grpc_forward": parse_pattern(given, "grpc-header-forward-pattern"),
        "grpc_tls": parse_tls(given, "grpc"),
    }


def _log(given: GivenFlags) -> dict[str, Any]:
    """Fields about the log."""
    return {
        "log_verbose": given.number("log-verbose"),
        "log_info": given.switch("log-info"),
        "log_warning": given.switch("log-warning"),
        "log_error": given.switch("log-error"),
        "log_format": LogFormat(given.text("log-format")),
        "log_file": Path(given.text("log-file")) if given.text("log-file") else None,
    }


def _environments(given: GivenFlags, store: StorePlace) -> dict[str, Any]:
    """Fields about where environments come from, and where they are kept."""
    return {
        "env_store": store.path,
        "env_store_max_bytes": given.number("env-store-max-bytes"),
        "env_directories": tuple(path.absolute() for path in given.paths("env-directory")),
        "env_trust": Path(given.text("env-trust")) if given.text("env-trust") else None,
        "env_require_digest": given.switch("env-require-digest"),
    }


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


def environment_store(named: str, environ: Mapping[str, str]) -> Path:
    """As `find_store`, for programs that have no log: what is to be said about it goes to the standard error.

    Raises:
        OptionError: As it does.
    """
    place = find_store(named, environ)
    if place.warning:
        sys.stderr.write(f"warning: {place.warning}\n")
    return place.path


def _platform_warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    if environ.get("AIP_MODE") != "PREDICTION":
        return ()
    return (
        (
            "AIP_MODE=PREDICTION is set, but the API of Vertex AI is not implemented in this version of naiad: "
            "HTTP and gRPC are served as the flags say"
        ),
    )
