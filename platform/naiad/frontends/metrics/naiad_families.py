"""Metrics that only naiad has (`naiad_*`): guests, connections and the environment store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import psutil

from naiad.frontends.metrics.families import Family, MetricType, Sample, model_labels
from naiad.frontends.open_connections import ConnectionCount
from naiad.frontends.request_memory import RequestMemory
from naiad.protocol.metadata import DemandStatus, InstanceStatus, ModelCondition, ModelStatistics

_HELP = {
    "naiad_guests_alive": "Number of running guest processes, per model",
    "naiad_guest_restarts_total": "Number of guest processes that were restarted, by the reason of the exit",
    "naiad_input_segment_used_bytes": "Shared memory in use by inputs of requests, per instance",
    "naiad_output_blocks_lent": (
        "Blocks of shared memory borrowed by responses that are not sent completely, per instance"
    ),
    "naiad_guest_memory_bytes": "Resident memory of a guest process, and the shared part of it",
    "naiad_requests_refused_total": (
        "Number of requests that were refused on arrival, by reason; no other series counts them"
    ),
    "naiad_model_ready": (
        "1 if all instances of a model serve, and it refuses no requests because they ended its processes"
    ),
    "naiad_connections_open": "Number of open client connections, without those for metrics",
    "naiad_connections_refused_total": (
        "Number of connections that were refused, by the limit: in total, or of one address"
    ),
    "naiad_connections_timed_out_total": (
        "Number of HTTP connections that were closed because of a time limit, by the limit"
    ),
    "naiad_request_memory_limit_bytes": "Memory that requests in flight may use together",
    "naiad_request_memory_used_bytes": "Memory that long requests in flight, decompressed, and unread responses use",
    "naiad_request_memory_unread_bytes": (
        "Memory of responses that their clients have not read, which is a part of that in use"
    ),
    "naiad_request_memory_stopped": "Number of requests that are not read until others free memory",
    "naiad_request_memory_refused_total": "Number of incomplete requests that were refused for want of memory",
    "naiad_unread_responses_dropped_total": (
        "Number of responses that were not sent to their end, by the reason: no memory was left, their client "
        "read too slowly while others needed memory, or for longer than a call of gRPC may take"
    ),
    "naiad_environment_store_bytes": "Size of all unpacked environments in the store",
    "naiad_environment_store_entries": "Number of unpacked environments in the store",
    "naiad_demand_models": "Number of models that are loaded on demand, by state",
    "naiad_demand_model_state": "1 with the present state of a model that is loaded on demand",
    "naiad_models_memory_limit_bytes": "Memory that all guests may use together; 0 for any",
    "naiad_models_memory_used_bytes": "Memory of all guests",
    "naiad_model_memory_bytes": (
        "Memory of the guests of a loaded model (proportional set size, and GPU memory where it is known)"
    ),
    "naiad_demand_loads_total": "Number of times that requests loaded a model",
    "naiad_demand_load_failures_total": "Number of times that requests could not load a model",
    "naiad_demand_evictions_total": (
        "Number of times that a model was unloaded because it was idle, or for the memory of another one"
    ),
    "naiad_model_reported_memory_bytes": (
        "Memory that guests keep for tensors in GPU memory, or that a native backend reports, by its type"
    ),
}


def guest_families(instances: Sequence[InstanceStatus]) -> list[Family]:
    """Number, restarts and memory of the guests."""
    alive: Counter[tuple[tuple[str, str], ...]] = Counter()
    for instance in instances:
        alive[tuple(_model(instance).items())] += bool(instance.pid)
    return [
        _family("naiad_guests_alive", [Sample(dict(model), count) for model, count in sorted(alive.items())]),
        _family(
            "naiad_guest_restarts_total",
            [
                Sample(_labels(instance, reason=reason), count)
                for instance in instances
                for reason, count in sorted(instance.restarts.items())
            ],
        ),
        _family(
            "naiad_input_segment_used_bytes",
            [Sample(_labels(instance), instance.input_byte_size) for instance in instances],
        ),
        _family(
            "naiad_output_blocks_lent", [Sample(_labels(instance), instance.borrowed_outputs) for instance in instances]
        ),
        _family(
            "naiad_guest_memory_bytes",
            [sample for instance in instances if instance.pid for sample in _memory(instance)],
        ),
    ]


def reported_memory_families(statistics: Iterable[ModelStatistics]) -> list[Family]:
    """What guests reported of their memory, as in the statistics; none while no guest has reported any."""
    samples = [
        Sample(model_labels(model, memory=use.type, memory_id=str(use.id)), use.byte_size)
        for model in statistics
        for use in model.memory_usage
    ]
    if not samples:
        return []
    return [_family("naiad_model_reported_memory_bytes", samples)]


def refusal_families(statistics: Sequence[ModelStatistics], without_version: Mapping[str, int]) -> list[Family]:
    """Requests that were refused on arrival, *without_version* before any saw them; whether models can serve."""
    # Reasons without refusals are included, so that the first refusal is an increase.
    refused = [
        Sample(model_labels(model, reason=reason), count)
        for model in statistics
        for reason, count in model.refusals.items()
    ]
    refused += [Sample({"reason": reason}, count) for reason, count in without_version.items()]
    # An `execute` that takes long may be what its author wants: that is for people to judge, not for an alert.
    serving = {ModelCondition.READY, ModelCondition.STALLED}
    ready = [Sample(model_labels(model), int(model.condition in serving)) for model in statistics]
    return [
        _family("naiad_requests_refused_total", refused),
        _family("naiad_model_ready", ready),
    ]


def connection_families(count: ConnectionCount) -> list[Family]:
    """Number of client connections: open, refused, and closed because of a time limit."""
    return [
        _single("naiad_connections_open", count.open),
        _family(
            "naiad_connections_refused_total",
            [Sample({"limit": reason}, count.refused[reason]) for reason in ("address", "total")],
        ),
        _family(
            "naiad_connections_timed_out_total",
            [Sample({"limit": reason}, count.timed_out[reason]) for reason in ("body", "header", "keepalive", "send")],
        ),
    ]


def request_memory_families(memory: RequestMemory) -> list[Family]:
    """Memory of long bodies, messages and unread responses (--memory-limit-requests)."""
    budget = memory.budget
    return [
        _single("naiad_request_memory_limit_bytes", budget.limit),
        _single("naiad_request_memory_used_bytes", budget.in_use),
        _single("naiad_request_memory_unread_bytes", budget.unread.size),
        _single("naiad_request_memory_stopped", budget.stopped_count),
        _family("naiad_request_memory_refused_total", [Sample({}, budget.refused)]),
        _family(
            "naiad_unread_responses_dropped_total",
            [Sample({"reason": reason}, budget.dropped[reason]) for reason in ("full", "slow", "time")],
        ),
    ]


def store_families(sizes: Sequence[int]) -> list[Family]:
    """Size of the environment store, from the sizes of its entries in bytes."""
    return [
        _single("naiad_environment_store_bytes", sum(sizes)),
        _single("naiad_environment_store_entries", len(sizes)),
    ]


def _family(name: str, samples: list[Sample]) -> Family:
    """A family of this module: a counter if its name ends like one, else a gauge."""
    return Family(name, _HELP[name], MetricType.COUNTER if name.endswith("_total") else MetricType.GAUGE, samples)


def _single(name: str, value: float) -> Family:
    return _family(name, [Sample({}, value)])


def _memory(instance: InstanceStatus) -> Iterable[Sample]:
    with suppress(psutil.Error):  # the guest has exited since
        found = psutil.Process(instance.pid).memory_info()
        yield Sample(_labels(instance, kind="resident"), found.rss)
        if hasattr(found, "shared"):  # on Linux only
            yield Sample(_labels(instance, kind="shared"), found.shared)


def _labels(instance: InstanceStatus, **extra: str) -> dict[str, str]:
    return dict(sorted({**_model(instance), "instance": instance.name, **extra}.items()))


def _model(instance: InstanceStatus) -> dict[str, str]:
    namespace = {"namespace": instance.namespace} if instance.namespace else {}
    return {"model": instance.model, **namespace, "version": instance.version}


_DEMAND_STATES = ("dormant", "failed", "loaded", "loading")


def demand_families(status: DemandStatus | None) -> list[Family]:
    """States, memory, loads and evictions of the models on demand; empty without any."""
    if status is None:
        return []
    counts = Counter(status.states.values())
    return [
        _family("naiad_demand_models", [Sample({"state": state}, counts[state]) for state in _DEMAND_STATES]),
        _family(
            "naiad_demand_model_state",
            [Sample({**_labels_of_key(model), "state": state}, 1) for model, state in sorted(status.states.items())],
        ),
        _single("naiad_models_memory_limit_bytes", status.limit),
        _single("naiad_models_memory_used_bytes", sum(status.sizes.values())),
        _family("naiad_model_memory_bytes", _by_model(status.sizes)),
        _family("naiad_demand_loads_total", _by_model(status.loads)),
        _family("naiad_demand_load_failures_total", _by_model(status.failures)),
        _family(
            "naiad_demand_evictions_total",
            [
                Sample({"cause": cause, **_labels_of_key(model)}, count)
                for (model, cause), count in sorted(status.evictions.items())
            ],
        ),
    ]


def _by_model(values: Mapping[str, int]) -> list[Sample]:
    return [Sample(_labels_of_key(model), value) for model, value in sorted(values.items())]


def _labels_of_key(key: str) -> dict[str, str]:
    namespace, _, name = key.rpartition("::")
    return {"model": name, **({"namespace": namespace} if namespace else {})}
