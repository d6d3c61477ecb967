"""Metrics that only naiad has (`naiad_*`): guests, their memory and restarts, and the environment store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

from naiad.frontends.metrics.families import Family, MetricType, Sample, single_gauge
from naiad.protocol.metadata import InstanceStatus


def guest_families(instances: Sequence[InstanceStatus]) -> list[Family]:
    """Number, restarts and memory of the guests."""
    alive: Counter[tuple[tuple[str, str], ...]] = Counter()
    for instance in instances:
        alive[tuple(_model(instance).items())] += bool(instance.pid)
    return [
        Family(
            "naiad_guests_alive",
            "Number of running guest processes, per model",
            MetricType.GAUGE,
            [Sample(dict(model), count) for model, count in sorted(alive.items())],
        ),
        Family(
            "naiad_guest_restarts_total",
            "Number of guest processes that were restarted, by the reason of the exit",
            MetricType.COUNTER,
            [
                Sample(_labels(instance, reason=reason), count)
                for instance in instances
                for reason, count in sorted(instance.restarts.items())
            ],
        ),
        Family(
            "naiad_input_segment_used_bytes",
            "Shared memory in use by inputs of requests, per instance",
            MetricType.GAUGE,
            [Sample(_labels(instance), instance.input_byte_size) for instance in instances],
        ),
        Family(
            "naiad_output_blocks_lent",
            "Blocks of shared memory borrowed by responses that are not sent completely, per instance",
            MetricType.GAUGE,
            [Sample(_labels(instance), instance.borrowed_outputs) for instance in instances],
        ),
        Family(
            "naiad_guest_memory_bytes",
            "Resident memory of a guest process, and the shared part of it",
            MetricType.GAUGE,
            [sample for instance in instances if instance.pid for sample in _memory(instance)],
        ),
    ]


def store_families(sizes: Sequence[int]) -> list[Family]:
    """Size of the environment store, from the sizes of its entries in bytes."""
    return [
        single_gauge("naiad_environment_store_bytes", "Size of all unpacked environments in the store", sum(sizes)),
        single_gauge("naiad_environment_store_entries", "Number of unpacked environments in the store", len(sizes)),
    ]


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
