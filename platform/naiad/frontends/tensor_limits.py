"""How many tensors a request may name: as many as its model has.

The engine checks that, too, with all names. But a request with a million tensors costs seconds before it gets there.
Reading stops here at the first tensor too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from naiad.core.errors import InvalidRequestError
from naiad.protocol.metadata import ModelMetadata

MAX_DIMENSIONS = 32  # dimensions of a tensor: as many as numpy supports


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """The tensors of one model, as far as requests are limited by them."""

    inputs: int | None = None  # how many inputs the model has; None to leave the check to the engine
    outputs: frozenset[str] | None = None  # names of its outputs; None to leave the check to the engine

    def check_inputs(self, count: int, model_name: str, request_id: object = None) -> None:
        if self.inputs is not None and count > self.inputs:
            shown = request_id if isinstance(request_id, str) and request_id else "<id_unknown>"
            raise InvalidRequestError(
                f"[request id: {shown}] expected {self.inputs} inputs but got {count} inputs for model '{model_name}'."
            )

    def check_outputs(self, requested: Sequence[str], model_name: str) -> None:
        """Reject a request for more outputs than its model has: at least one of them is unknown."""
        if self.outputs is not None and len(requested) > len(self.outputs):
            unknown = next(name for name in requested if name not in self.outputs)
            raise InvalidRequestError(f"unexpected inference output '{unknown}' for model '{model_name}'")


NO_LIMITS = TensorLimits()


def limits_of(metadata: ModelMetadata) -> TensorLimits:
    """The limits of a model."""
    return TensorLimits(len(metadata.inputs), frozenset(tensor.name for tensor in metadata.outputs))
