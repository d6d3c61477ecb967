"""How loaded a model's key-value cache is, told in a header to those who ask (ORCA, Open Request Cost Aggregation).

Load balancers in front of language models send `endpoint-load-metrics-format: json` or `text` with a request to
generate and choose their next server by `endpoint-load-metrics` of the response. The numbers are a model's own metrics,
under the name that the reference looks for. (SRV src/orca_http.cc)
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

HeaderLines: TypeAlias = Callable[[], bytes]
"""Makes further lines of a response's head once that is written."""


def no_headers() -> bytes:
    """None."""
    return b""


def load_header(form: bytes, families: Iterable[ModelMetricFamily]) -> bytes:
    """The header line in the format that the client named; empty, with a word in the log, where there is none."""
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
    """The values by what they count; of several models' the last counts, as in the reference."""
    found: dict[str, float] = {}
    for family in families:
        if family.name == _FAMILY:
            for metric in family.metrics.values():
                kind = dict(metric.labels).get(_LABEL)
                if kind is not None:
                    found[kind] = metric.value
    return found
