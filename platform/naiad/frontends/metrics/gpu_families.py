"""The reference's metrics of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from naiad.frontends.metrics.families import Family, MetricType, Sample

__all__ = ["gpu_families"]

_FAMILIES = (
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", MetricType.GAUGE),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", MetricType.GAUGE),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", MetricType.GAUGE),
    ("nv_gpu_power_usage", "GPU power usage in watts", MetricType.GAUGE),
    ("nv_gpu_power_limit", "GPU power management limit in watts", MetricType.GAUGE),
    ("nv_energy_consumption", "GPU energy consumption in joules since the server started", MetricType.COUNTER),
)


def gpu_families(measured: Iterable[tuple[str, Mapping[str, float]]]) -> list[Family]:
    """The families of GPUs for what was measured of each, by UUID and name; none without GPUs."""
    gpus = list(measured)
    families = []
    for name, text, kind in _FAMILIES:
        samples = [Sample({"gpu_uuid": uuid}, values[name]) for uuid, values in gpus if name in values]
        if samples:
            families.append(Family(name, text, kind, samples))
    return families
