"""What the response cache holds and spares, as families of the metrics page (the reference's local cache has them)."""

from __future__ import annotations

from naiad.frontends.metrics.families import Family, Kind, Sample
from naiad.protocol.metadata import CacheStatistics


def cache_families(now: CacheStatistics | None) -> list[Family]:
    """The gauges of the whole cache; empty where the server has no cache (None)."""
    if now is None:
        return []
    values = (
        ("nv_cache_util", "Cache utilization [0.0 - 1.0]", now.used_byte_size / now.byte_size),
        ("nv_cache_num_entries", "Number of responses stored in response cache", now.entries),
        ("nv_cache_num_hits", "Number of cache hits in response cache", now.hits),
        ("nv_cache_num_misses", "Number of cache misses in response cache", now.misses),
        ("nv_cache_num_lookups", "Number of cache lookups in response cache", now.hits + now.misses),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", now.evictions),
        (
            "nv_cache_lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            now.lookup_ns // 1000,
        ),
        ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", now.insertion_ns // 1000),
    )
    return [Family(name, text, Kind.GAUGE, [Sample({}, value)]) for name, text, value in values]
