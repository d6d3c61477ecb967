"""Ragged batches: inputs whose sizes differ between requests, one behind the other, and inputs that describe them.

Kinds, shapes and types are those of the reference (BACKEND src/backend_input_collector.cc and
src/backend_output_responder.cc, `model_config.proto`).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from saved_models.settings import ModelSettings

Shapes = Mapping[str, Tuple[int, ...]]  # shapes of the inputs of a request, with its rows


class RaggedBatches:
    """The ragged inputs, batch inputs and batch outputs of a configuration."""

    def __init__(self, settings: ModelSettings) -> None:
        self.inputs = frozenset(tensor.name for tensor in settings.inputs if tensor.is_ragged)
        self._batch_inputs = [
            (entry.get("kind", "BATCH_ELEMENT_COUNT"), entry["source_input"][0], _dtype(entry), entry["target_name"])
            for entry in settings.config.get("batch_input") or ()
        ]
        leading = (-1,) if settings.max_batch_size else ()
        dims = {tensor.name: (*leading, *tensor.dims) for tensor in settings.outputs}
        self._scattered = {
            name: (entry["source_input"][0], dims[name])
            for entry in settings.config.get("batch_output") or ()
            for name in entry["target_name"]
        }

    @property
    def is_used(self) -> bool:
        return bool(self.inputs or self._batch_inputs or self._scattered)

    def flat(self, name: str, array: Any) -> Any:
        """An input as the model gets it: a ragged one as one dimension."""
        return array.reshape(-1) if name in self.inputs else array

    def batch_inputs(self, requests: Sequence[Shapes]) -> Dict[str, np.ndarray[Any, Any]]:
        """The arrays that describe a batch, by the names of the model's inputs."""
        found = {}
        for kind, source, dtype, targets in self._batch_inputs:
            array = _describe(kind, [request[source] for request in requests], dtype)
            found.update(dict.fromkeys(targets, array))
        return found

    def scatter(self, name: str, array: Any, requests: Sequence[Shapes]) -> List[Any]:
        """Each request's part of an output: dimensions that vary are those of its input, at the same places."""
        source, dims = self._scattered[name]
        shapes = [_with_sizes(dims, request[source]) for request in requests]
        ends = np.cumsum([_count(shape) for shape in shapes]).tolist()
        flat = array.reshape(-1)
        if len(flat) != ends[-1]:
            raise ValueError(
                f"output '{name}' has {len(flat)} elements, and inputs '{source}' of its batch need {ends[-1]}"
            )
        return [flat[end - _count(shape) : end].reshape(shape) for shape, end in zip(shapes, ends)]

    def is_scattered(self, name: str) -> bool:
        return name in self._scattered


def _dtype(entry: Mapping[str, Any]) -> Any:
    return np.float32 if entry.get("data_type") == "TYPE_FP32" else np.int32


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _with_sizes(dims: Sequence[int], shape: Sequence[int]) -> Tuple[int, ...]:
    return tuple(shape[place] if size == -1 and place < len(shape) else size for place, size in enumerate(dims))


def _describe(kind: str, shapes: Sequence[Sequence[int]], dtype: Any) -> np.ndarray[Any, Any]:
    """What a batch input of a kind says about an input, whose *shapes* in the requests are given."""
    counts = np.array([_count(shape) for shape in shapes])
    if kind == "BATCH_ELEMENT_COUNT":
        return counts.astype(dtype)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
        return np.cumsum(counts).astype(dtype)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        return np.cumsum([0, *counts]).astype(dtype)
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return np.zeros(counts.max(), dtype)
    sizes = np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype)
    return sizes.reshape(-1) if kind == "BATCH_ITEM_SHAPE_FLATTEN" else sizes
