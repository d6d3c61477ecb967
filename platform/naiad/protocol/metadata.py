"""What the server tells about itself and its models: plain values for the frontends to print."""

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
)
"""The extension names of `GET /v2`, in the reference's order (core: src/tritonserver.cc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """Name, version and protocol extensions of the server."""

    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """Name, KServe datatype and shape of an input or output; a leading -1 stands for the batch dimension.

    Attributes:
        labels: Names of the classes that an output's elements stand for; none for most.
        required: Whether it is an input that no request may leave out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """What a model takes and gives.

    Attributes:
        name: The model.
        versions: Its versions as strings.
        platform: `platform` of the configuration, or its `backend` where that is empty.
        inputs: Inputs in the configuration's order.
        outputs: Outputs in the configuration's order.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def with_labels(metadata: ModelMetadata, labels: Mapping[str, tuple[str, ...]]) -> ModelMetadata:
    """The same with the labels of its outputs, by their names."""
    if not labels:
        return metadata
    outputs = tuple(replace(tensor, labels=labels.get(tensor.name, ())) for tensor in metadata.outputs)
    return replace(metadata, outputs=outputs)


class ModelState(enum.Enum):
    """State of one model version, as the repository index prints it."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One line of the repository index; a model that was never loaded has a name alone, and its namespace."""

    name: str
    version: str = ""
    state: ModelState | None = None
    reason: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Duration:
    """A count and the nanoseconds they took together."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class SummaryValue:
    """Count and sum of all values ever, and quantiles of those of late: NaN where there are none."""

    count: int
    sum: int
    quantiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """How many values were up to each of some bounds, but above the one before; the last count is of those above all.

    Attributes:
        bounds: The bounds, ascending.
        counts: One more than bounds.
        sum: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
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
    """The responses of a decoupled model that had one place among those to their request.

    Attributes:
        compute_infer: Time until the model sent them, since it sent those before them or its execute began.
        compute_output: Time to take their outputs over.
        success: Both together, of those that were no errors.
        fail: Likewise, of errors.
        empty_response: Ends of requests without a response.
        cancel: Ends of requests that were cancelled.
    """

    compute_infer: Duration
    compute_output: Duration
    success: Duration
    fail: Duration
    empty_response: Duration
    cancel: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """Statistics of one model version (extension_statistics).

    Attributes:
        name: The model.
        version: Its version as a string.
        last_inference: Milliseconds since the epoch of the last inference, 0 if there was none.
        inference_count: Batch items inferred.
        execution_count: Calls of `execute`.
        success: Requests that succeeded, from submission to response.
        fail: Requests that failed.
        failures: How many of them for which reason, if it is known.
        queue: Time in the queue.
        compute_input: Time to lay inputs out for the guest.
        compute_infer: Time in the guest.
        compute_output: Time to take outputs over.
        namespace: Its namespace; empty where there are none.
        tags: What its configuration wants its metrics to be labelled with.
        is_cached: Whether it wants its responses to be kept.
        error_responses: Requests that the model answered with an error, which count as successes.
        pending_count: Requests that wait for an instance.
        load_seconds: How long loading it took.
        summaries: Quantiles of durations in microseconds, by what took so long; empty unless they are wanted.
        first_responses: How many milliseconds it took to the first response of each request; None unless that is
            wanted.
        cache_hit: Requests answered from the response cache.
        cache_miss: Requests looked up in vain.
        batch_stats: Per batch size.
        responses: Per place of a response among those to its request, of decoupled models alone.
    """

    name: str
    version: str
    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    failures: Mapping[str, int] = field(default_factory=dict)
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    namespace: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    is_cached: bool = False
    error_responses: int = 0
    pending_count: int = 0
    load_seconds: float = 0.0
    summaries: Mapping[str, SummaryValue] = field(default_factory=dict)
    first_responses: HistogramValue | None = None
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()
    batch_stats: tuple[BatchStatistics, ...] = field(default=())
    responses: Iterable[ResponseStatistics] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """How full the response cache is, and how useful.

    Attributes:
        byte_size: Bytes it may hold.
        used_byte_size: Bytes it holds.
        entries: Responses it holds.
        hits: Look-ups that found one.
        misses: Look-ups that found none.
        evictions: Responses that had to make room for others.
        lookup_ns: Nanoseconds that all look-ups took.
        insertion_ns: Nanoseconds that keeping responses took.
    """

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
    """One instance of a model version.

    Attributes:
        model: The model.
        namespace: Its namespace; empty where there are none.
        version: Its version as a string.
        name: The instance.
        pid: Its guest's process; 0 while there is none.
        restarts: How often its guest was replaced, by what the one before had died of.
        input_byte_size: Bytes of its input segment that hold requests now.
        lent_outputs: Blocks of its output segment that responses on their way refer to.
    """

    model: str
    namespace: str = ""
    version: str
    name: str
    pid: int
    restarts: Mapping[str, int]
    input_byte_size: int
    lent_outputs: int
