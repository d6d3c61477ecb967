"""Metadata, statistics and the index as the JSON documents of KServe v2 and Triton's extensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from naiad.protocol.metadata import IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata

_DURATIONS = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]


def server_document(metadata: ServerMetadata) -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)}


def metadata_document(metadata: ModelMetadata) -> dict[str, Any]:
    """`GET /v2/models/M`."""
    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "inputs": [_tensor(tensor) for tensor in metadata.inputs],
        "outputs": [_tensor(tensor) for tensor in metadata.outputs],
    }


def index_document(entries: Sequence[IndexEntry]) -> list[dict[str, str]]:
    """`POST /v2/repository/index`. A model that was never loaded has only a name."""
    document = []
    for entry in entries:
        line = {"name": entry.name}
        if entry.state is not None:
            if entry.version:
                line["version"] = entry.version
            line["state"] = entry.state.value
            if entry.reason:
                line["reason"] = entry.reason
        document.append(line)
    return document


def statistics_document(statistics: Sequence[ModelStatistics]) -> dict[str, Any]:
    """`GET /v2/models/M/stats` (SRV docs/protocol/extension_statistics.md)."""
    return {"model_stats": [_model(model) for model in statistics]}


def _tensor(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _model(model: ModelStatistics) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {name: asdict(getattr(model, name)) for name in _DURATIONS},
        "response_stats": {str(position): asdict(each) for position, each in model.responses},
        "batch_stats": [asdict(batch) for batch in model.batch_stats],
        "memory_usage": [asdict(memory) for memory in model.memory_usage],
    }
