"""Metadata and statistics of the server and its models, as plain values that the frontends print."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)  # the extension names of `GET /v2`, in the reference's order (core: src/tritonserver.cc)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """Name, version and protocol extensions of the server."""

    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """Name, KServe datatype and shape of an input or output; a leading -1 is the batch dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()  # class names of an output's elements; empty for most
    required: bool = False  # whether it is an input that every request must have


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """Inputs and outputs of a model."""

    name: str
    versions: tuple[str, ...]
    platform: str  # `platform` of the configuration, or its `backend` where that is empty
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def with_labels(metadata: ModelMetadata, labels: Mapping[str, tuple[str, ...]]) -> ModelMetadata:
    """*metadata* with labels of its outputs, given by output name."""
    if not labels:
        return metadata
    outputs = tuple(replace(tensor, labels=labels.get(tensor.name, ())) for tensor in metadata.outputs)
    return replace(metadata, outputs=outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandStatus:
    """Models that are loaded on demand, for metrics."""

    states: Mapping[str, str]  # state of each such model, by its key: dormant, loading, loaded, failed
    sizes: Mapping[str, int]
    limit: int  # bytes that all guests may use together; 0 for any
    loads: Mapping[str, int]
    failures: Mapping[str, int]
    evictions: Mapping[tuple[str, str], int]  # by the model's key and the cause: idle, or memory


class ModelState(enum.Enum):
    """State of one model version, as the repository index prints it."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One line of the repository index; a model that was never loaded has only a name and a namespace."""

    name: str
    version: str = ""
    state: ModelState | None = None
    reason: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Duration:
    """A count of events, and their total duration in nanoseconds."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class SummaryValue:
    """Count and sum of all values, and quantiles of recent ones (NaN without any)."""

    count: int
    sum: int
    quantiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A histogram: for each ascending bound, how many values were at most that, and above the bound before."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # one more than *bounds*; the last counts the values above all bounds
    sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Durations of execute calls with one batch size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics:
    """Responses of a decoupled model at one position among the responses to their request."""

    compute_infer: Duration  # until the model sent them, since the response before or the start of `execute`
    compute_output: Duration
    success: Duration  # sum of both times, of responses without an error
    fail: Duration  # sum of both times, of errors
    empty_response: Duration  # requests that ended here without a response
    cancel: Duration


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that a guest reported."""

    type: str  # CPU, CPU_PINNED or GPU
    id: int  # number of the memory among those of its type; of a GPU, its number in that guest
    byte_size: int


class ModelCondition(enum.Enum):
    """What a loaded model can do now, as the page shows it.

    Clients that ask for its readiness get whether it can serve any request: all but `NOT_SERVING`.
    """

    READY = "ready"
    DEGRADED = "degraded"
    STALLED = "no progress"
    NOT_SERVING = "not serving"
    REFUSING = "refusing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """Statistics of one model version (extension_statistics)."""

    name: str
    version: str
    last_inference: int = 0  # milliseconds since the epoch of the last inference, 0 before the first one
    inference_count: int = 0  # rows inferred, over all batches
    execution_count: int = 0
    success: Duration = Duration()  # successful requests, from submission to response
    fail: Duration = Duration()
    failures: Mapping[str, int] = field(default_factory=dict)  # failed requests by reason, where it is known
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    namespace: str = ""  # its namespace; empty where namespaces are disabled
    tags: Mapping[str, str] = field(default_factory=dict)  # labels that its configuration adds to its metrics
    is_cached: bool = False
    error_responses: int = 0  # requests to which the model responded with an error; they count as successes
    pending_count: int = 0
    load_seconds: float = 0.0
    summaries: Mapping[str, SummaryValue] = field(default_factory=dict)  # in µs, by part of the request
    first_responses: HistogramValue | None = None  # milliseconds; None unless enabled
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()
    batch_stats: tuple[BatchStatistics, ...] = field(default=())
    responses: Iterable[tuple[int, ResponseStatistics]] = ()  # by position in the request; decoupled models
    memory_usage: tuple[MemoryUse, ...] = ()
    running_count: int = 0
    latencies: Mapping[int, int] = field(default_factory=dict)  # by µs, rounded, if enabled
    first_latencies: Mapping[int, int] = field(default_factory=dict)  # of decoupled models
    refusals: Mapping[str, int] = field(default_factory=dict)  # by reason; in no other count
    condition: ModelCondition = ModelCondition.READY
    stalled: str = ""  # of which instances `execute` makes no progress, as a sentence; empty for none
    refused: str = ""  # which requests it refuses now because they ended its processes, as a sentence; empty for none


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """Size and use of the response cache; times are sums over all lookups and insertions."""

    byte_size: int
    used_byte_size: int
    entries: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One instance of a model version."""

    model: str
    namespace: str = ""  # its namespace; empty where namespaces are disabled
    version: str  # its version as a string
    name: str
    pid: int  # process id of its guest; 0 while it has none
    state: str = "ready"  # "ready", "hung", "restarting" or "given up"
    restarts: Mapping[str, int]  # how often its guest was replaced, by the exit status of the one before
    input_byte_size: int  # bytes of its input segment that hold requests now
    borrowed_outputs: int  # blocks of its output segment that responses in flight borrow
    stalled_seconds: float = 0.0  # for how long its `execute` has made no progress; 0 below a minute
