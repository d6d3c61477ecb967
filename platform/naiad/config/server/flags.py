"""Every flag of the server, as data: the one place that says what is used, accepted without effect, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from naiad.config.server.flag import Accepted, Flag, Kind, Refused

__all__ = ["SERVER_FLAGS"]

_NONE, _TEXT, _INT, _SIZE, _FLOAT, _BOOL = (
    Kind.NOTHING,
    Kind.STRING,
    Kind.INTEGER,
    Kind.SIZE,
    Kind.NUMBER,
    Kind.BOOLEAN,
)
_SETTING, _NAMED = Kind.SETTING, Kind.NAMED_SETTING


def _is_off(text: str) -> bool:
    return text.lower() in {"", "false", "off", "0"}


def _missing(what: str, instead: str = "", harmless: Callable[[str], bool] = _is_off) -> Refused:
    """Something this version does not do."""
    advice = f"; {instead}" if instead else ""
    return Refused(f"{what} not implemented in this version of naiad{advice}", harmless)


_NO_GPU = Accepted("naiad leaves GPUs to the models: it holds no device memory and copies nothing to a device")
_ONE_LOOP = Accepted("one event loop serves all connections: there are no such threads or pools to size")
_NATIVE = Accepted("naiad runs Python backends only, and this names a directory of native libraries")
_ON_DEMAND = Accepted("metrics are measured when they are asked for")
_NO_SAGEMAKER = Accepted("it matters only with --allow-sagemaker=true, which this version refuses")
_NO_VERTEX = Accepted("it matters only with --allow-vertex-ai=true, which this version refuses")


_GROUPS: dict[str, tuple[Flag, ...]] = {
    "Server": (
        Flag("help", _NONE, "", "Print this and exit; also -h."),
        Flag("id", _TEXT, "triton", "Name of this server in /v2."),
        Flag("exit-timeout-secs", _INT, "30", "How long an ending server waits for requests in flight.", low=0),
        Flag("exit-on-error", _BOOL, "true", "Exit with code 1 if a model fails to load at the start."),
        Flag("strict-readiness", _BOOL, "true", "Be ready only if every model is."),
        Flag("allow-client-shm", _BOOL, "false", "Let clients register regions of shared memory for tensors."),
    ),
    "Logging": (
        Flag("log-verbose", Kind.VERBOSITY, "0", "Level of debug messages; 0 is none.", low=0),
        Flag("log-info", _BOOL, "true", "Log what happens."),
        Flag("log-warning", _BOOL, "true", "Log warnings."),
        Flag("log-error", _BOOL, "true", "Log errors."),
        Flag(
            "log-format", _TEXT, "default", "Time stamps: MMDD hh:mm:ss.ssssss or ISO.", choices=("default", "ISO8601")
        ),
        Flag("log-file", _TEXT, "", "Append the log to this file instead of stderr."),
    ),
    "Model repository": (
        Flag("model-store", _TEXT, "", "The same as --model-repository.", repeatable=True, same_as="model-repository"),
        Flag("model-repository", _TEXT, "", "Directory or URI of models; repeat it to serve several.", repeatable=True),
        Flag("bundle", _TEXT, "", "Start what `naiad bundle` made, with its models and flags.", own=True),
        Flag("disable-auto-complete-config", _NONE, "", "Take config.pbtxt as it is; models complete nothing."),
        Flag(
            "model-control-mode",
            _TEXT,
            "none",
            "none: all, once; poll: all, and changes; explicit: on request.",
            choices=("none", "poll", "explicit"),
        ),
        Flag("load-model", _TEXT, "", "Load this at the start of explicit mode; '*' alone: all.", repeatable=True),
        Flag("repository-poll-secs", _INT, "15", "Seconds between looks in poll mode; 0: an hour.", low=0),
        Flag("model-config-name", _TEXT, "", "Prefer configs/<name>.pbtxt in the directory of each model."),
        Flag("model-load-thread-count", _INT, "4", "How many models are loaded at a time.", low=1),
        Flag("model-load-retry-count", _INT, "0", "How often a failed load is tried again.", low=0),
        Flag("model-namespacing", _BOOL, "false", "Make each repository a namespace of names."),
    ),
    "HTTP": (
        Flag("allow-http", _BOOL, "true", "Serve HTTP."),
        Flag("http-address", _TEXT, "0.0.0.0", "Address to listen on."),  # noqa: S104 - the reference's default
        Flag("http-port", _INT, "8000", "Port to listen on.", low=0, high=65535),
        Flag("reuse-http-port", _BOOL, "false", "Share the port with other servers."),
        Flag("http-header-forward-pattern", _TEXT, "", "Headers that become request parameters."),
        Flag("http-thread-count", _INT, "8", "Threads of the service.", low=1, status=_ONE_LOOP),
        Flag("http-max-input-size", _SIZE, "67108864", "Largest body of a request.", low=1),
        Flag("http-restricted-api", _NAMED, "", "APIs that need a header.", repeatable=True),
        Flag("http-use-ssl", _BOOL, "false", "Use TLS.", own=True),
        Flag("http-use-ssl-mutual", _BOOL, "false", "Use TLS with certificates of clients.", own=True),
        Flag("http-server-cert", _TEXT, "", "File of the server's certificate.", own=True),
        Flag("http-server-key", _TEXT, "", "File of the server's key.", own=True),
        Flag("http-root-cert", _TEXT, "", "File of the root certificate.", own=True),
        Flag("ui", _BOOL, "false", "Serve a page to look at models and try them at /ui.", own=True),
        Flag("max-header-bytes", _INT, "65536", "Largest head of a request.", low=1024, own=True),
    ),
    "gRPC": (
        Flag("allow-grpc", _BOOL, "true", "Serve gRPC."),
        Flag("grpc-address", _TEXT, "0.0.0.0", "Address to listen on."),  # noqa: S104 - the reference's default
        Flag("grpc-port", _INT, "8001", "Port to listen on.", low=0, high=65535),
        Flag("reuse-grpc-port", _BOOL, "false", "Share the port with other servers."),
        Flag("grpc-header-forward-pattern", _TEXT, "", "Headers that become request parameters."),
        Flag("grpc-infer-thread-count", _INT, "2", "Threads of the service.", low=2, high=128, status=_ONE_LOOP),
        Flag("grpc-infer-allocation-pool-size", _INT, "8", "Request objects kept.", status=_ONE_LOOP),
        Flag("grpc-max-response-pool-size", _INT, "2147483647", "Response objects kept.", low=1, status=_ONE_LOOP),
        Flag("grpc-use-ssl", _BOOL, "false", "Use TLS."),
        Flag("grpc-use-ssl-mutual", _BOOL, "false", "Use TLS with certificates of clients."),
        Flag("grpc-server-cert", _TEXT, "", "File of the server's certificate."),
        Flag("grpc-server-key", _TEXT, "", "File of the server's key."),
        Flag("grpc-root-cert", _TEXT, "", "File of the root certificate."),
        Flag(
            "grpc-infer-response-compression-level",
            _TEXT,
            "none",
            "Compression of responses.",
            choices=("none", "low", "medium", "high"),
            bad_choice="invalid argument for --grpc_infer_response_compression_level",
        ),
        Flag("grpc-keepalive-time", _INT, "7200000", "Milliseconds of silence before a ping."),
        Flag("grpc-keepalive-timeout", _INT, "20000", "Milliseconds to wait for a ping's answer."),
        Flag("grpc-keepalive-permit-without-calls", _BOOL, "false", "Ping connections without calls, too."),
        Flag("grpc-http2-max-pings-without-data", _INT, "2", "Pings in a row without data; 0 is any number."),
        Flag(
            "grpc-http2-min-recv-ping-interval-without-data",
            _INT,
            "300000",
            "Milliseconds between pings of an idle client.",
        ),
        Flag("grpc-http2-max-ping-strikes", _INT, "2", "Pings that may come too early; 0 is any number."),
        Flag("grpc-max-connection-age", _INT, "0", "Milliseconds a connection may live; 0 is for ever.", low=0),
        Flag("grpc-max-connection-age-grace", _INT, "0", "Milliseconds its calls then have; 0 is any.", low=0),
        Flag("grpc-restricted-protocol", _NAMED, "", "APIs that need a header.", repeatable=True),
    ),
    "OpenAI's API": (
        Flag("openai-port", _INT, "", "Serve /v1 here; may be --http-port.", low=0, high=65535, own=True),
        Flag("openai-address", _TEXT, "", "Address to listen on; that of HTTP unless given.", own=True),
        Flag("openai-api-keys-file", _TEXT, "", "Keys, one a line; also $NAIAD_OPENAI_API_KEYS.", own=True),
        Flag("openai-allowed-origins", _TEXT, "", "Origins of pages that may ask, by commas; * is any.", own=True),
        Flag("openai-default-max-tokens", _INT, "", "Else 16, and for chats what fits.", low=1, own=True),
        Flag("openai-chat-template", _TEXT, "", "Jinja template for models without an input messages.", own=True),
        Flag("openai-lora-separator", _TEXT, "", "What divides model from adapter in names.", own=True),
    ),
    "Metrics": (
        Flag("allow-metrics", _BOOL, "true", "Serve metrics for Prometheus."),
        Flag("metrics-address", _TEXT, "", "Address to listen on; that of HTTP unless given."),
        Flag("metrics-port", _INT, "8002", "Port to listen on.", low=0, high=65535),
        Flag("metrics-interval-ms", _FLOAT, "2000", "Milliseconds between measurements.", status=_ON_DEMAND),
        Flag("allow-cpu-metrics", _BOOL, "true", "Measure processors and memory."),
        Flag("allow-gpu-metrics", _BOOL, "true", "Measure GPUs.", status=Accepted("naiad measures no GPUs")),
        Flag("metrics-config", _SETTING, "", "<setting>=<value>; see the page of metrics.", repeatable=True),
    ),
    "Response cache": (
        Flag("cache-config", _NAMED, "", "local,size=<bytes>: keep models' responses.", repeatable=True),
        Flag("cache-directory", _TEXT, "", "Where caches are found.", status=_NATIVE),
    ),
    "Rate limiter": (
        Flag(
            "rate-limit",
            _TEXT,
            "off",
            "execution_count: instances share the resources their groups name.",
            choices=("off", "execution_count"),
        ),
        Flag(
            "rate-limit-resource",
            _TEXT,
            "",
            "<name>:<count>[:<device>]; else the most an instance needs.",
            repeatable=True,
        ),
    ),
    "Traces": (
        Flag(
            "trace-config",
            _NAMED,
            "",
            "What is traced, and where to (level, mode, triton,file, opentelemetry,url).",
            repeatable=True,
        ),
    ),
    "Backends and environments": (
        Flag("backend-directory", _TEXT, "", "Directory of backends; repeat it to search several.", repeatable=True),
        Flag("backend-config", _NAMED, "", "A backend's setting; all backends' without name.", repeatable=True),
        Flag("env-store", _TEXT, "", "Where environments are unpacked; else $NAIAD_STORE, else the cache.", own=True),
        Flag("env-store-max-bytes", _SIZE, "0", "Size above which what nobody uses goes; 0: any.", low=0, own=True),
        Flag("env-directory", _TEXT, "", "Directory of env://NAME; repeatable.", repeatable=True, own=True),
        Flag("env-trust", _TEXT, "", "File of public keys; environments need a signature by one.", own=True),
        Flag("env-require-digest", _BOOL, "false", "Refuse URIs of environments without @sha256.", own=True),
        Flag(
            "prewarm", _TEXT, "false", "Models whose imports are done once: true (all), or names by commas.", own=True
        ),
        Flag(
            "busy-poll-us",
            _INT,
            "-1",
            "Poll while messages follow within so many us; 0: never, -1: as fits.",
            low=-1,
            own=True,
        ),
        Flag("stub-restart-limit", _INT, "5", "Restarts in the window after which a model is lost.", low=0, own=True),
        Flag("stub-restart-window-secs", _INT, "60", "Seconds after which a restart is forgotten.", low=1, own=True),
    ),
    "Not in this version (refused where it would matter, else without effect)": (
        Flag("repoagent-directory", _TEXT, "", "Where repository agents are found.", status=_NATIVE),
        Flag("allow-sagemaker", _BOOL, "false", "Serve SageMaker.", status=_missing("SageMaker's API is")),
        Flag("sagemaker-port", _INT, "8080", "Its port.", status=_NO_SAGEMAKER),
        Flag("sagemaker-safe-port-range", _TEXT, "", "Ports others may use.", status=_NO_SAGEMAKER),
        Flag("sagemaker-thread-count", _INT, "8", "Its threads.", status=_NO_SAGEMAKER),
        Flag("allow-vertex-ai", _BOOL, "false", "Serve Vertex AI.", status=_missing("the API of Vertex AI is")),
        Flag("vertex-ai-port", _INT, "8080", "Its port.", status=_NO_VERTEX),
        Flag("vertex-ai-thread-count", _INT, "8", "Its threads.", status=_NO_VERTEX),
        Flag("vertex-ai-default-model", _TEXT, "", "Its model.", status=_NO_VERTEX),
        Flag("enable-peer-access", _BOOL, "true", "Direct access between GPUs.", status=_NO_GPU),
        Flag("pinned-memory-pool-byte-size", _SIZE, "268435456", "Pinned memory.", status=_NO_GPU),
        Flag("cuda-memory-pool-byte-size", _TEXT, "", "Memory of a GPU.", repeatable=True, status=_NO_GPU),
        Flag("cuda-virtual-address-size", _TEXT, "", "Address space of a GPU.", repeatable=True, status=_NO_GPU),
        Flag("min-supported-compute-capability", _FLOAT, "6.0", "Oldest GPU.", status=_NO_GPU),
        Flag("model-load-gpu-limit", _TEXT, "", "Share of a GPU's memory.", repeatable=True, status=_NO_GPU),
        Flag("buffer-manager-thread-count", _INT, "0", "Threads that copy tensors.", status=_ONE_LOOP),
        Flag(
            "host-policy",
            _NAMED,
            "",
            "Processors and memory of instances.",
            repeatable=True,
            status=Accepted("instances run where the system puts them; start the server under taskset or numactl"),
        ),
    ),
    "Deprecated": (
        Flag(
            "strict-model-config",
            _BOOL,
            "",
            "True: --disable-auto-complete-config.",
            deprecated="--disable-auto-complete-config",
        ),
        Flag(
            "response-cache-byte-size",
            _SIZE,
            "",
            "The same as --cache-config=local,size=<bytes>.",
            deprecated="--cache-config=local,size=<bytes>",
        ),
        Flag("trace-file", _TEXT, "", "File of traces.", deprecated="--trace-config"),
        Flag(
            "trace-level",
            _TEXT,
            "",
            "What is traced.",
            repeatable=True,
            deprecated="--trace-config",
        ),
        Flag("trace-rate", _INT, "", "One request of how many.", deprecated="--trace-config"),
        Flag("trace-count", _INT, "", "How many traces.", deprecated="--trace-config"),
        Flag("trace-log-frequency", _INT, "", "Traces in a file.", deprecated="--trace-config"),
    ),
}

SERVER_FLAGS: tuple[Flag, ...] = tuple(replace(flag, group=group) for group, flags in _GROUPS.items() for flag in flags)
"""All flags in the order of the usage."""
