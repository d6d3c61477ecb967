"""The load of a model's key-value cache in a response header (ORCA, Open Request Cost Aggregation).

Load balancers of language models send `endpoint-load-metrics-format: json` or `text` with a generate request. They
choose the next server by the header `endpoint-load-metrics` of the response. The numbers come from the model's own
metrics, which must have the names that the reference looks for (SRV src/orca_http.cc).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

import orjson

from naiad.protocol.model_metrics import ModelMetricFamily

logger = logging.getLogger("naiad.http")

FORMAT_HEADER = b"endpoint-load-metrics-format"

_HEADER = b"endpoint-load-metrics: %b\r\n"
_FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_LABEL = "kv_cache_block_type"
_BLOCKS = ("used", "max", "tokens_per")

HeaderLines: TypeAlias = Callable[[], bytes]  # makes further header lines of a response at the time it is written


def no_headers() -> bytes:
    """No header lines."""
    return b""


def load_header(form: bytes, families: Iterable[ModelMetricFamily]) -> bytes:
    """The header line in the format that the client named; empty, with a warning in the log, without metrics."""
    asked = form.decode("latin-1")
    if asked not in {"json", "text"}:
        logger.warning("%s is set to an invalid type: %s; there are json and text", FORMAT_HEADER.decode(), asked)
        return b""
    found = _blocks(families)
    missing = [kind for kind in _BLOCKS if found.get(kind, -1) < 0]
    if missing:
        logger.warning(
            "no endpoint-load-metrics: one or more of the kv metrics was not found or invalid: %s with %s=%s",
            _FAMILY,
            _LABEL,
            ", ".join(missing),
        )
        return b""
    utilization = found["used"] / found["max"] if found["max"] > 0 else 0.0
    capacity = int(found["max"] * found["tokens_per"])
    if asked == "json":
        named = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
        return _HEADER % (b"JSON " + orjson.dumps({"named_metrics": named}))
    text = f"TEXT named_metrics.kv_cache_utilization={utilization:.6f}, named_metrics.max_token_capacity={capacity}"
    return _HEADER % text.encode()


def _blocks(families: Iterable[ModelMetricFamily]) -> dict[str, float]:
    """The numbers of blocks by their kind. Of several models the last one counts, as in the reference."""
    found: dict[str, float] = {}
    for family in families:
        if family.name == _FAMILY:
            for metric in family.metrics.values():
                kind = dict(metric.labels).get(_LABEL)
                if kind is not None:
                    found[kind] = metric.value
    return found
