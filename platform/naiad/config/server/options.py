"""Every option of the server, declared once: flag, type, default, help text, bounds, and the field that holds it.

To add an option, add one field to a group below and use it. The groups are in the order of the usage; values that need
more than a conversion are parsed by the functions of the modules imported here.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from naiad_stub.process_limits import usable_processors

from naiad.config.server.access import (
    ApiKeySources,
    Restrictions,
    TlsFiles,
    api_key_sources,
    parse_pattern,
    parse_restrictions,
    parse_tls,
)
from naiad.config.server.backend_settings import (
    BackendConfigs,
    PythonSettings,
    backend_directories,
    parse_backend_configs,
    parse_python_settings,
)
from naiad.config.server.cache_options import parse_cache_size
from naiad.config.server.console_options import parse_ui_address, parse_ui_control, parse_ui_password
from naiad.config.server.env_build import EnvBuild, parse_env_build
from naiad.config.server.flag import Flag, Kind, NoEffect, Unsupported, leading_integer
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.guest_user import GuestUser, GuestUserRange, parse_guest_user
from naiad.config.server.hardened import Hardening
from naiad.config.server.metrics_options import MetricsConfig, parse_metrics_config
from naiad.config.server.option_group import combined, flags_of, option, own_option, own_path, own_switch
from naiad.config.server.store_location import StoreLocation, find_store, guest_directory
from naiad.config.server.trace_options import TraceConfig, parse_trace_config
from naiad.config.server.web_pages import parse_allowed_hosts, parse_allowed_origins
from naiad.core.quantities import parse_size


def parse_gpu_pools(values: FlagValues, name: str) -> Mapping[int, int]:
    """Bytes by the number of a GPU; the last value for a GPU counts."""
    found: dict[int, int] = {}
    for text in values.texts(name):
        gpu, colon, size = text.partition(":")
        number, limit = leading_integer(gpu), leading_integer(size)
        if not colon or number is None or number < 0 or limit is None or limit < 0:
            raise values.invalid(name, f"--{name} option format is '<GPU device ID>:<byte size>'. Got {text}")
        found[number] = limit
    return found


FORMER_NAME = "frontends"  # the flag by its former name, of which 0 meant one process
_AUTO = "auto"
_FEW_CORES = 4
_CORES_PER_PROCESS = 4
_MOST_AUTOMATIC = 8
_MOST = 64


def parse_processes(values: FlagValues, name: str) -> int:
    """The number of processes that serve the ports; 1 where one process does everything."""
    is_former = values.has(FORMER_NAME) and not values.has(name)
    given = FORMER_NAME if is_former else name
    least, text = 0 if is_former else 1, values.text(given)
    if text == _AUTO:
        return automatic_count(usable_processors())
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= _MOST:
        raise values.invalid(given, f"'{text}' is not a number from {least} to {_MOST} or '{_AUTO}'")
    return max(int(text), 1)


def automatic_count(cores: int) -> int:
    """How many processes `auto` means on a machine with *cores* usable cores."""
    return 1 if cores <= _FEW_CORES else min(max(cores // _CORES_PER_PROCESS, 2), _MOST_AUTOMATIC)


_LIMITS = "rate-limit-resource"
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """Units of a resource that exist on one device, or (`device` None) on each device."""

    name: str
    count: int
    device: int | None = None


def parse_resource_limits(values: FlagValues) -> tuple[ResourceLimit, ...] | None:
    """The values of `--rate-limit-resource`; None where the rate limiter is off."""
    limits = tuple(_parse_limit(values, text) for text in values.texts(_LIMITS))
    return None if values.text("rate-limit") == "off" else limits


def _parse_limit(values: FlagValues, text: str) -> ResourceLimit:
    name, *numbers = text.split(":")
    if not name or len(numbers) not in {1, 2}:
        raise values.invalid(
            _LIMITS,
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}",
        )
    count, *devices = (_number(values, number) for number in numbers)
    return ResourceLimit(name, count, devices[0] if devices else None)


def _number(values: FlagValues, text: str) -> int:
    number = leading_integer(text)
    if number is None or number < 0:
        raise values.invalid(_LIMITS, f"Invalid option value. Got {text}")
    if number > _LARGEST:
        raise values.invalid(_LIMITS, f"Provided option value is out of bound. Got {text}")
    return number


_NONE, _INT, _SIZE, _FLOAT, _BOOL = Kind.NOTHING, Kind.INTEGER, Kind.SIZE, Kind.NUMBER, Kind.BOOLEAN
_SETTING, _NAMED = Kind.SETTING, Kind.NAMED_SETTING

_NO_GPU = NoEffect("the server uses no GPU itself, the processes of the models do")
_ONE_LOOP = NoEffect("one event loop serves all connections, without threads or pools")
_NO_AGENTS = NoEffect("naiad has no repository agents")
_OWN_CACHE = NoEffect("the response cache is part of naiad, and this names a directory of libraries of caches")
_ON_DEMAND = NoEffect("metrics are measured when they are asked for")
_NO_SAGEMAKER = NoEffect("it matters only with --allow-sagemaker=true, which this version refuses")
_NO_VERTEX = NoEffect("it matters only with --allow-vertex-ai=true, which this version refuses")


def _is_off(text: str) -> bool:
    return text.lower() in {"", "false", "off", "0"}


def _missing(feature: str) -> Unsupported:
    return Unsupported(f"{feature} not implemented in this version of naiad", _is_off)


class ModelControlMode(enum.Enum):
    """What decides which models are loaded."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"
    DEMAND = "demand"


class LogFormat(enum.Enum):
    """Format of a log line's time stamp."""

    DEFAULT = "default"
    ISO8601 = "ISO8601"


def _member_of(kind: type[enum.Enum]) -> Callable[[FlagValues, str], enum.Enum]:
    return lambda values, name: kind(values.text(name))


def _unique_texts(values: FlagValues, name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values.texts(name)))


def _is_auto_completing(values: FlagValues, name: str) -> bool:
    return not (values.switch(name) or values.switch("strict-model-config"))


def _address_or_http(values: FlagValues, name: str) -> str:
    return values.text(name) or values.text("http-address")


def _size_or_any(values: FlagValues, name: str) -> int:
    return _size(values, name) or sys.maxsize


def _size(values: FlagValues, name: str) -> int:
    return values.parsed(name, parse_size)


def _size_or_none(values: FlagValues, name: str) -> int | None:
    return _size(values, name) if values.text(name) else None


def _comma_separated(values: FlagValues, name: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, values.text(name).split(","))))


def _absolute_paths(values: FlagValues, name: str) -> tuple[Path, ...]:
    return tuple(path.absolute() for path in values.paths(name))


def _tls(service: str, *, own: bool) -> Any:
    return combined(
        partial(parse_tls, service=service),
        Flag(f"{service}-use-ssl", "Use TLS.", _BOOL, "false", own=own),
        Flag(f"{service}-use-ssl-mutual", "Use TLS with certificates of clients.", _BOOL, "false", own=own),
        Flag(f"{service}-server-cert", "File of the server's certificate.", own=own),
        Flag(f"{service}-server-key", "File of the server's key.", own=own),
        Flag(f"{service}-root-cert", "File of the root certificate.", own=own),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralOptions:
    """The server as a whole."""

    help: ClassVar[Flag] = Flag("help", "Print this and exit; also -h.", _NONE)
    server_id: str = option("id", "Name of this server in /v2.", default="triton")
    hardened: ClassVar[Flag] = Flag(
        "hardened", "Set safer defaults than Triton's, for clients you do not trust.", _NONE, own=True
    )
    exit_timeout_secs: int = option(
        "exit-timeout-secs", "How long an ending server waits for requests in flight.", _INT, "30", low=0
    )
    drain_seconds: int = own_option(
        "drain-seconds", "How long an ending server still serves, while it is not ready.", _INT, "0", low=0
    )
    exit_on_error: bool = option(
        "exit-on-error", "Exit with code 1 if a model fails to load at the start.", _BOOL, "true"
    )
    strict_readiness: bool = option("strict-readiness", "Be ready only if every model is.", _BOOL, "true")
    listen_while_loading: bool = own_option(
        "listen-while-loading", "Open the ports before the models are loaded.", _BOOL, "true"
    )
    allow_client_shm: bool = option(
        "allow-client-shm", "Let clients register regions of shared memory for tensors.", _BOOL, "false"
    )
    processes: int = own_option(
        "processes", "Processes that serve the ports and run models; auto: by cores.", default="1", read=parse_processes
    )
    # None: a quarter of the memory that the process may use.
    memory_limit_requests: int | None = own_option(
        "memory-limit-requests",
        "Memory of requests and responses, such as 2GiB; default: 1/4 of all.",
        read=_size_or_none,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The server's log at its start."""

    verbosity: int = option("log-verbose", "Level of debug messages; 0 turns them off.", Kind.VERBOSITY, "0", low=0)
    info: bool = option("log-info", "Log what happens.", _BOOL, "true")
    warning: bool = option("log-warning", "Log warnings.", _BOOL, "true")
    error: bool = option("log-error", "Log errors.", _BOOL, "true")
    format: LogFormat = option(
        "log-format",
        "Time stamps: MMDD hh:mm:ss.ssssss or ISO.",
        default="default",
        choices=("default", "ISO8601"),
        read=_member_of(LogFormat),
    )
    file: Path | None = option("log-file", "Append the log to this file instead of stderr.", read=FlagValues.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model repositories, and which of their models are loaded."""

    store: ClassVar[Flag] = Flag(
        "model-store", "The same as --model-repository.", repeatable=True, same_as="model-repository"
    )
    # Paths of directories; a URI is text.
    repositories: tuple[Path | str, ...] = option(
        "model-repository",
        "Directory or URI of models; repeat it to serve several.",
        repeatable=True,
        read=FlagValues.locations,
    )
    auto_complete: bool = option(
        "disable-auto-complete-config",
        "Take config.pbtxt as it is; models complete nothing.",
        _NONE,
        read=_is_auto_completing,
    )
    control_mode: ModelControlMode = option(
        "model-control-mode",
        "When to load: once, on changes, on request, by requests.",
        default="none",
        choices=("none", "poll", "explicit", "demand"),
        read=_member_of(ModelControlMode),
    )
    # `("*",)` is all models.
    startup_models: tuple[str, ...] = option(
        "load-model", "Load this at the start of explicit mode; '*' alone: all.", repeatable=True, read=_unique_texts
    )
    gpu_fallback: str = own_option(
        "gpu-fallback",
        "Where KIND_GPU is on a machine without a GPU: cpu, for development.",
        default="none",
        choices=("none", "cpu"),
    )
    poll_secs: int = option(
        "repository-poll-secs", "Seconds between looks in poll mode; 0: an hour.", _INT, "15", low=0
    )
    demand_load_timeout: float = own_option(
        "demand-load-timeout", "Seconds that a request waits for its model to be loaded on demand.", _FLOAT, "60", low=0
    )
    demand_idle_seconds: float = own_option(
        "demand-idle-seconds",
        "Unload models loaded on demand after so long without requests; 0: never.",
        _FLOAT,
        "0",
        low=0,
    )
    # 0: no limit.
    models_memory: int = own_option(
        "models-memory", "Memory of all guests, such as 16GiB, with demand; 0: any.", default="0", read=_size
    )
    config_name: str = option("model-config-name", "Prefer configs/<name>.pbtxt in the directory of each model.")
    load_thread_count: int = option(
        "model-load-thread-count", "How many models are loaded at a time.", _INT, "4", low=1
    )
    load_retry_count: int = option(
        "model-load-retry-count", "How often a failed load is tried again.", _INT, "0", low=0
    )
    requires_signature: bool = own_switch(
        "require-signature", "Accept models only if a key of --env-trust signed them (`naiad push --key`)."
    )
    is_namespaced: bool = option("model-namespacing", "Make each repository a namespace of names.", _BOOL, "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The HTTP service."""

    is_enabled: bool = option("allow-http", "Serve HTTP.", _BOOL, "true")
    address: str = option("http-address", "Address to listen on.", default="0.0.0.0")  # noqa: S104 - Triton's default
    port: int = option("http-port", "Port to listen on.", _INT, "8000", low=0, high=65535)
    reuse_port: bool = option("reuse-http-port", "Share the port, and OpenAI's, with other servers.", _BOOL, "false")
    forward_pattern: re.Pattern[str] | None = option(
        "http-header-forward-pattern", "Headers that become request parameters.", read=parse_pattern
    )
    thread_count: ClassVar[Flag] = Flag(
        "http-thread-count", "Threads of the service.", _INT, "8", low=1, support=_ONE_LOOP
    )
    max_input_size: int = option(
        "http-max-input-size", "Largest JSON or raw body of a request.", _SIZE, "67108864", low=1
    )
    restrictions: Restrictions = option(
        "http-restricted-api", "APIs that need a header.", Kind.RESTRICTION, repeatable=True, read=parse_restrictions
    )
    tls: TlsFiles | None = _tls("http", own=True)
    # None: the names of this machine at loopback addresses, else any.
    allowed_hosts: tuple[str, ...] | None = own_option(
        "http-allowed-hosts",
        "Names that all HTTP ports serve (header Host), by commas; * is any.",
        read=parse_allowed_hosts,
    )
    allowed_origins: tuple[str, ...] = own_option(
        "http-allowed-origins",
        "Origins of other web pages that may change something or infer; * is any.",
        read=parse_allowed_origins,
    )
    api_page: bool = own_option("api-page", "Serve a page of the API at /docs, and /openapi.json.", _BOOL, "true")
    ui: bool = own_option("ui", "Serve a page to look at models and try them at /ui.", _BOOL, "false")
    ui_address: str = own_option(
        "ui-address", "Address that serves the page; default: loopback without --ui-password.", read=parse_ui_address
    )
    ui_control: bool = own_option(
        "ui-control",
        "Let the page load and unload models (--model-control-mode=explicit).",
        _BOOL,
        "false",
        read=parse_ui_control,
    )
    ui_password: str = own_option(
        "ui-password", "File whose first line is the password of the page.", read=parse_ui_password
    )
    max_body_size: int = own_option(
        "http-client-max-body-size",
        "Largest body of a request, such as 64MiB; 0 is any size.",
        default="8GiB",
        read=_size_or_any,
    )
    keepalive_timeout: float = own_option(
        "http-keepalive-timeout", "Seconds a connection may be idle; 0: any.", _FLOAT, "7200", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """The gRPC service. Times are in milliseconds, as in its flags."""

    is_enabled: bool = option("allow-grpc", "Serve gRPC.", _BOOL, "true")
    address: str = option("grpc-address", "Address to listen on.", default="0.0.0.0")  # noqa: S104 - Triton's default
    port: int = option("grpc-port", "Port to listen on.", _INT, "8001", low=0, high=65535)
    reuse_port: bool = option("reuse-grpc-port", "Share the port with other servers.", _BOOL, "false")
    forward_pattern: re.Pattern[str] | None = option(
        "grpc-header-forward-pattern", "Headers that become request parameters.", read=parse_pattern
    )
    thread_count: ClassVar[Flag] = Flag(
        "grpc-infer-thread-count", "Threads of the service.", _INT, "2", low=2, high=128, support=_ONE_LOOP
    )
    allocation_pool_size: ClassVar[Flag] = Flag(
        "grpc-infer-allocation-pool-size", "Request objects kept.", _INT, "8", support=_ONE_LOOP
    )
    response_pool_size: ClassVar[Flag] = Flag(
        "grpc-max-response-pool-size", "Response objects kept.", _INT, "2147483647", low=1, support=_ONE_LOOP
    )
    tls: TlsFiles | None = _tls("grpc", own=False)
    response_compression: str = option(
        "grpc-infer-response-compression-level",
        "Compression of responses.",
        default="none",
        choices=("none", "low", "medium", "high"),
        bad_choice="invalid argument for --grpc_infer_response_compression_level",
    )
    keepalive_time: int = option("grpc-keepalive-time", "Milliseconds of silence before a ping.", _INT, "7200000")
    keepalive_timeout: int = option(
        "grpc-keepalive-timeout", "Milliseconds to wait for a ping's answer.", _INT, "20000"
    )
    keepalive_permit_without_calls: bool = option(
        "grpc-keepalive-permit-without-calls", "Ping connections without calls, too.", _BOOL, "false"
    )
    max_pings_without_data: int = option(
        "grpc-http2-max-pings-without-data", "Pings in a row without data; 0 is any number.", _INT, "2"
    )
    min_recv_ping_interval: int = option(
        "grpc-http2-min-recv-ping-interval-without-data",
        "Milliseconds between pings of an idle client.",
        _INT,
        "300000",
    )
    max_ping_strikes: int = option(
        "grpc-http2-max-ping-strikes", "Pings that may come too early; 0 is any number.", _INT, "2"
    )
    max_connection_age: int = option(
        "grpc-max-connection-age", "Longest lifetime of a connection in milliseconds; 0: unlimited.", _INT, "0", low=0
    )
    max_connection_age_grace: int = option(
        "grpc-max-connection-age-grace", "Milliseconds its calls then have; 0 is any.", _INT, "0", low=0
    )
    restrictions: Restrictions = option(
        "grpc-restricted-protocol",
        "APIs that need a header.",
        Kind.RESTRICTION,
        repeatable=True,
        read=parse_restrictions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How many connections of HTTP, gRPC and OpenAI's API may be open; metrics are not counted."""

    # None: by the limit on open files.
    total: int | None = own_option(
        "max-connections", "Connections in all; 0: any. Default: 3/4 of the open files.", _INT, low=0
    )
    per_address: int = own_option(
        "max-connections-per-address", "Connections of one client address; 0: any.", _INT, "0", low=0
    )
    client_timeout: float = own_option(
        "client-timeout", "Seconds in which a client sends more, or reads 2 KiB for each; 0: any.", _FLOAT, "60", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """The OpenAI-compatible API; it is served only where `port` is not None."""

    port: int | None = own_option("openai-port", "Serve /v1 here; may be --http-port.", _INT, low=0, high=65535)
    address: str = own_option(
        "openai-address", "Address to listen on; that of HTTP unless given.", read=_address_or_http
    )
    api_keys: ApiKeySources = own_option(
        "openai-api-keys-file",
        "Keys, one a line, read again when it changes; also $NAIAD_OPENAI_API_KEYS.",
        read=api_key_sources,
    )
    allowed_origins: tuple[str, ...] = own_option(
        "openai-allowed-origins", "Origins of pages that may ask, by commas; * is any.", read=parse_allowed_origins
    )
    default_max_tokens: int | None = own_option(
        "openai-default-max-tokens", "Else 16, and for chats what fits.", _INT, low=1
    )
    chat_template: Path | None = own_path(
        "openai-chat-template", "Jinja template for models without an input messages."
    )
    stored_responses: int = own_option(
        "openai-stored-responses", "Responses of /v1/responses kept in memory; 0: none.", _INT, "1000", low=0
    )
    serves_metrics: bool = own_switch("openai-metrics", "Serve /metrics on the port of /v1 too, with its keys.")
    serves_mcp: bool = own_switch("mcp", "Serve models as agents' tools at /mcp on the port of /v1.")
    mcp_models: tuple[str, ...] = own_option(
        "mcp-models", "The models that are tools, by commas; all unless given.", read=_comma_separated
    )
    lora_separator: str = own_option("openai-lora-separator", "What divides model from adapter in names.", default=":")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """The metrics service, and what it measures."""

    is_enabled: bool = option("allow-metrics", "Serve metrics for Prometheus.", _BOOL, "true")
    address: str = option("metrics-address", "Address to listen on; that of HTTP unless given.", read=_address_or_http)
    port: int = option("metrics-port", "Port to listen on.", _INT, "8002", low=0, high=65535)
    interval: ClassVar[Flag] = Flag(
        "metrics-interval-ms", "Milliseconds between measurements.", _FLOAT, "2000", support=_ON_DEMAND
    )
    with_cpu: bool = option("allow-cpu-metrics", "Measure processors and memory.", _BOOL, "true")
    with_gpu: bool = option("allow-gpu-metrics", "Measure NVIDIA GPUs.", _BOOL, "true")
    config: MetricsConfig = option(
        "metrics-config",
        "<setting>=<value>; see the page of metrics.",
        _SETTING,
        repeatable=True,
        read=parse_metrics_config,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The response cache."""

    # In bytes; 0 for no cache.
    size: int = option(
        "cache-config", "local,size=<bytes>: keep models' responses.", _NAMED, repeatable=True, read=parse_cache_size
    )
    directory: ClassVar[Flag] = Flag("cache-directory", "Where caches are found.", support=_OWN_CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitOptions:
    """The rate limiter."""

    # None where it is off.
    resources: tuple[ResourceLimit, ...] | None = combined(
        parse_resource_limits,
        Flag(
            "rate-limit",
            "execution_count: instances share the resources their groups name.",
            default="off",
            choices=("off", "execution_count"),
        ),
        Flag(_LIMITS, "<name>:<count>[:<device>]; else the most an instance needs.", repeatable=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Tracing at the server's start; clients can change it."""

    config: TraceConfig = option(
        "trace-config",
        "What is traced, and where to (level, mode, triton,file, opentelemetry,url).",
        _NAMED,
        repeatable=True,
        read=parse_trace_config,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Where backends are found, and their settings."""

    # In search order; the backends that ship with naiad are last.
    directories: tuple[Path, ...] = option(
        "backend-directory",
        "Directory of backends; repeat it to search several.",
        repeatable=True,
        read=backend_directories,
    )
    configs: BackendConfigs = option(
        "backend-config",
        "A backend's setting; all backends' without name.",
        _NAMED,
        repeatable=True,
        read=parse_backend_configs,
    )
    # Also from --backend-config: the settings of backend `python`, converted and checked.
    python: PythonSettings = combined(parse_python_settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """Where the models' execution environments come from, and where they are unpacked."""

    store_location: StoreLocation = own_option(
        "env-store",
        "Where environments are unpacked; else $NAIAD_STORE, else the cache.",
        read=lambda values, name: find_store(values.text(name), values.environ),
    )
    # 0 for no limit.
    store_max_bytes: int = own_option(
        "env-store-max-bytes", "Size above which unused environments are removed; 0: unlimited.", _SIZE, "0", low=0
    )
    directories: tuple[Path, ...] = own_option(
        "env-directory", "Directory of env://NAME; repeatable.", repeatable=True, read=_absolute_paths
    )
    trusted_keys: Path | None = own_path("env-trust", "File of public keys; environments need a signature by one.")
    require_digest: bool = own_option(
        "env-require-digest", "Refuse URIs of environments without @sha256.", _BOOL, "false"
    )
    # None: not given. `naiad run`, and `naiad serve` at a terminal, then allow everything.
    build: EnvBuild | None = own_option(
        "env-build",
        "Install packages that models declare: never, from locks, or without.",
        default="locked",
        choices=tuple(each.value for each in EnvBuild),
        read=parse_env_build,
    )
    wheels: tuple[Path, ...] = own_option(
        "env-wheels",
        "Folder of wheels to install environments from; repeatable.",
        repeatable=True,
        read=_absolute_paths,
    )
    is_offline: bool = own_switch("offline", "Download nothing for environments.")

    @property
    def store(self) -> Path:
        return self.store_location.path

    @property
    def guest_directory(self) -> Path:
        return guest_directory(self.store)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestOptions:
    """How guest processes are started, polled and restarted."""

    prewarm: bool = own_option("prewarm", "Do the imports of all instances of a model once.", _BOOL, "false")
    # -1: the server decides by the number of cores.
    busy_poll_us: int = own_option(
        "busy-poll-us", "Poll while messages follow within so many us; 0: never, -1: as fits.", _INT, "-1", low=-1
    )
    # None: all variables of the server but its own secrets.
    environ: tuple[str, ...] | None = own_option(
        "guest-env",
        "Variables that models inherit, by commas, such as HF_HOME,AWS_*; else all.",
        read=lambda values, name: _comma_separated(values, name) if values.has(name) else None,
    )
    # None: the server's own user.
    user: GuestUser | GuestUserRange | None = own_option(
        "guest-user",
        "User of models: NAME or UID[:GROUP or :GID], or auto: one each; needs root.",
        read=parse_guest_user,
    )
    log_rate: int = own_option(
        "guest-log-rate", "Lines a second that an instance may log; 0: any.", _INT, "1000", low=0
    )
    gpu_pools: Mapping[int, int] = option(
        "cuda-memory-pool-byte-size",
        "<GPU>:<bytes> that an instance shares with others there; else 1 GiB.",
        repeatable=True,
        read=parse_gpu_pools,
    )
    restart_limit: int = own_option(
        "stub-restart-limit", "Restarts in the window after which a model is given up.", _INT, "5", low=0
    )
    restart_window_secs: int = own_option(
        "stub-restart-window-secs", "Seconds after which a restart is forgotten.", _INT, "60", low=1
    )
    hang_seconds: int = own_option(
        "stub-hang-seconds", "Restart a process without progress for so long; 0: never.", _INT, "0", low=0
    )
    recovery_secs: int = own_option(
        "stub-recovery-secs", "Seconds until a model given up is tried again; 0: never.", _INT, "30", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the server was asked to do."""

    general: GeneralOptions
    log: LogOptions
    models: ModelOptions
    http: HttpOptions
    grpc: GrpcOptions
    connections: ConnectionOptions
    openai: OpenAiOptions
    metrics: MetricsOptions
    cache: CacheOptions
    rate_limit: RateLimitOptions
    trace: TraceOptions
    backends: BackendOptions
    environments: EnvironmentOptions
    guests: GuestOptions
    hardening: Hardening | None = None
    command_line: tuple[str, ...] = ()  # the flags as given, in order, for the log
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def openai_shares_http(self) -> bool:
        http, openai = self.http, self.openai
        return http.is_enabled and (openai.address, openai.port) == (http.address, http.port)


_UNSUPPORTED = (
    Flag("repoagent-directory", "Where repository agents are found.", support=_NO_AGENTS),
    Flag("allow-sagemaker", "Serve SageMaker.", _BOOL, "false", support=_missing("SageMaker's API is")),
    Flag("sagemaker-port", "Its port.", _INT, "8080", support=_NO_SAGEMAKER),
    Flag("sagemaker-safe-port-range", "Ports others may use.", support=_NO_SAGEMAKER),
    Flag("sagemaker-thread-count", "Its threads.", _INT, "8", support=_NO_SAGEMAKER),
    Flag("allow-vertex-ai", "Serve Vertex AI.", _BOOL, "false", support=_missing("the API of Vertex AI is")),
    Flag("vertex-ai-port", "Its port.", _INT, "8080", support=_NO_VERTEX),
    Flag("vertex-ai-thread-count", "Its threads.", _INT, "8", support=_NO_VERTEX),
    Flag("vertex-ai-default-model", "Its model.", support=_NO_VERTEX),
    Flag("enable-peer-access", "Direct access between GPUs.", _BOOL, "true", support=_NO_GPU),
    Flag("pinned-memory-pool-byte-size", "Pinned memory.", _SIZE, "268435456", support=_NO_GPU),
    Flag("cuda-virtual-address-size", "Address space of a GPU.", repeatable=True, support=_NO_GPU),
    Flag("min-supported-compute-capability", "Oldest GPU.", _FLOAT, "6.0", support=_NO_GPU),
    Flag("model-load-gpu-limit", "Share of a GPU's memory.", repeatable=True, support=_NO_GPU),
    Flag("buffer-manager-thread-count", "Threads that copy tensors.", _INT, "0", support=_ONE_LOOP),
    Flag(
        "host-policy",
        "Processors and memory of instances.",
        _NAMED,
        repeatable=True,
        support=NoEffect("instances run where the system puts them; start the server under taskset or numactl"),
    ),
)

# They set no separate field: the parsers of the flags that replace them read them, too.
_DEPRECATED = (
    Flag(
        "strict-model-config",
        "True: --disable-auto-complete-config.",
        _BOOL,
        deprecated="--disable-auto-complete-config",
    ),
    Flag(
        "response-cache-byte-size",
        "The same as --cache-config=local,size=<bytes>.",
        _SIZE,
        deprecated="--cache-config=local,size=<bytes>",
    ),
    Flag(FORMER_NAME, "The same as --processes.", own=True, deprecated="--processes"),
    Flag("trace-file", "File of traces.", deprecated="--trace-config"),
    Flag("trace-level", "What is traced.", repeatable=True, deprecated="--trace-config"),
    Flag("trace-rate", "One request of how many.", _INT, deprecated="--trace-config"),
    Flag("trace-count", "How many traces.", _INT, deprecated="--trace-config"),
    Flag("trace-log-frequency", "Traces in a file.", _INT, deprecated="--trace-config"),
)

# The fields of `ServerOptions` that flags set, in the order of the usage: heading and class of each.
OPTION_GROUPS: Mapping[str, tuple[str, type[Any]]] = {
    "general": ("Server", GeneralOptions),
    "log": ("Logging", LogOptions),
    "models": ("Model repository", ModelOptions),
    "http": ("HTTP", HttpOptions),
    "grpc": ("gRPC", GrpcOptions),
    "connections": ("What clients may take", ConnectionOptions),
    "openai": ("OpenAI's API", OpenAiOptions),
    "metrics": ("Metrics", MetricsOptions),
    "cache": ("Response cache", CacheOptions),
    "rate_limit": ("Rate limiter", RateLimitOptions),
    "trace": ("Traces", TraceOptions),
    "backends": ("Backends", BackendOptions),
    "environments": ("Environments of models", EnvironmentOptions),
    "guests": ("Processes of models", GuestOptions),
}

SERVER_FLAGS: tuple[Flag, ...] = (
    *(flag for heading, group in OPTION_GROUPS.values() for flag in flags_of(heading, group)),
    *flags_of("Not in this version (refused where it would matter, else without effect)", _UNSUPPORTED),
    *flags_of("Deprecated", _DEPRECATED),
)
