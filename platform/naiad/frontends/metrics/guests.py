"""What only naiad has: guests, their memory and their deaths, and the store of environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

from naiad.frontends.metrics.families import Family, Kind, Sample
from naiad.protocol.metadata import InstanceStatus


def guest_families(instances: Sequence[InstanceStatus]) -> list[Family]:
    """Guests alive, restarted, and what they hold."""
    alive: Counter[tuple[tuple[str, str], ...]] = Counter()
    for instance in instances:
        alive[tuple(_model(instance).items())] += bool(instance.pid)
    return [
        Family(
            "naiad_guests_alive",
            "Number of guest processes that serve, per model",
            Kind.GAUGE,
            [Sample(dict(model), count) for model, count in sorted(alive.items())],
        ),
        Family(
            "naiad_guest_restarts_total",
            "Number of guest processes that took the place of one that died, by what that died of",
            Kind.COUNTER,
            [
                Sample(_labels(instance, reason=reason), count)
                for instance in instances
                for reason, count in sorted(instance.restarts.items())
            ],
        ),
        Family(
            "naiad_input_segment_used_bytes",
            "Shared memory that holds inputs of requests now, per instance",
            Kind.GAUGE,
            [Sample(_labels(instance), instance.input_byte_size) for instance in instances],
        ),
        Family(
            "naiad_output_blocks_lent",
            "Blocks of shared memory that responses on their way to clients refer to, per instance",
            Kind.GAUGE,
            [Sample(_labels(instance), instance.lent_outputs) for instance in instances],
        ),
        Family(
            "naiad_guest_memory_bytes",
            "Memory of a guest process that is resident, and of that what it shares",
            Kind.GAUGE,
            [sample for instance in instances if instance.pid for sample in _memory(instance)],
        ),
    ]


def store_families(sizes: Sequence[int]) -> list[Family]:
    """The store of environments, by the sizes of its entries."""
    return [
        _gauge("naiad_environment_store_bytes", "Size of all unpacked environments in the store", sum(sizes)),
        _gauge("naiad_environment_store_entries", "Number of unpacked environments in the store", len(sizes)),
    ]


def _memory(instance: InstanceStatus) -> Iterable[Sample]:
    with suppress(psutil.Error):  # it may end just now
        found = psutil.Process(instance.pid).memory_info()
        yield Sample(_labels(instance, kind="resident"), found.rss)
        if hasattr(found, "shared"):  # Linux has it
            yield Sample(_labels(instance, kind="shared"), found.shared)


def _labels(instance: InstanceStatus, **more: str) -> dict[str, str]:
    return dict(sorted({**_model(instance), "instance": instance.name, **more}.items()))


def _model(instance: InstanceStatus) -> dict[str, str]:
    namespace = {"namespace": instance.namespace} if instance.namespace else {}
    return {"model": instance.model, **namespace, "version": instance.version}


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, text, Kind.GAUGE, [Sample({}, value)])
