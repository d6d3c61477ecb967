"""What the kinds of models have in common: how their tensors are named, and how they are called."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple, Union

import torch
from saved_models.interface import ModelTensor
from saved_models.settings import ModelSettings

Key = Union[int, str]  # where an output is in what a call returns: a position, or a name


class Model(Protocol):
    """A model that was read from its file."""

    described: str  # its interface as its file tells it, for errors
    # Types, shapes, and names for where the configuration gives none; None where the file has the name alone.
    inputs: Tuple[Optional[ModelTensor], ...]
    input_names: Tuple[str, ...]  # these names
    output_names: Tuple[str, ...]  # in order; empty if only a call tells how many there are
    device: torch.device  # where its inputs must be

    def bind(self, settings: ModelSettings) -> Dict[str, Key]:
        """Compare the configuration, and find each output in what a call returns; ModelLoadError for a difference."""

    def call(self, values: Mapping[str, Any]) -> Any:
        """What the model returns for inputs by the configuration's names: tensors, and lists of strings."""


def require_tensors(settings: ModelSettings, described: str) -> None:
    """Refuse a configuration without inputs or without outputs, in the reference's words."""
    for kind, tensors in (("input", settings.inputs), ("output", settings.outputs)):
        if not tensors:
            raise settings.error(
                f"model configuration must contain at least one {kind}, none were specified. Its file has {described}"
            )


def as_outputs(result: Any) -> Union[Sequence[Any], Mapping[str, Any]]:
    """What a call returned, as a sequence of outputs or as outputs by name."""
    if isinstance(result, Mapping):
        return result
    is_strings = isinstance(result, list) and all(isinstance(value, str) for value in result)
    return result if isinstance(result, (tuple, list)) and not is_strings else (result,)


def output_at(outputs: Union[Sequence[Any], Mapping[str, Any]], name: str, key: Key) -> Any:
    """The output of this name; IndexError if there is none."""
    if isinstance(outputs, Mapping):
        if name in outputs:
            return outputs[name]
        outputs = tuple(outputs.values())
    if not isinstance(key, int) or not 0 <= key < len(outputs):
        raise IndexError(
            f"The output {name} in the model configuration refers to an output index which doesn't exist. This model "
            f"has {len(outputs)} outputs"
        )
    return outputs[key]
