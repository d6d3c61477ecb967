"""Which requests may share a batch (CORE src/backend_model.cc, src/scheduler_utils.cc)."""

from __future__ import annotations

from collections.abc import Hashable

from naiad.config.model.model_config import ModelConfig
from naiad.protocol.inference import InferRequest


class ShapeKeys:
    """Computes the shape keys of a model's requests; requests with equal keys may share a batch.

    In a batch, inputs with a variable dimension must have the same shape, unless they allow ragged batches. Where the
    model has optional inputs, all requests of a batch must have the same inputs.
    """

    __slots__ = ("_compared", "_first_dimension", "_has_optional")

    def __init__(self, config: ModelConfig) -> None:
        self._compared = frozenset(
            tensor.name for tensor in config.inputs if -1 in tensor.dims and not tensor.allow_ragged_batch
        )
        self._has_optional = any(tensor.optional for tensor in config.inputs)
        self._first_dimension = 1 if config.max_batch_size > 0 else 0

    @property
    def is_needed(self) -> bool:
        """Whether any request has a key other than None."""
        return bool(self._compared) or self._has_optional

    def key(self, request: InferRequest) -> Hashable | None:
        if not self.is_needed:
            return None
        parts = [
            (tensor.name, tensor.shape[self._first_dimension :] if tensor.name in self._compared else None)
            for tensor in request.inputs
            if self._has_optional or tensor.name in self._compared
        ]
        return tuple(sorted(parts, key=lambda part: part[0]))
