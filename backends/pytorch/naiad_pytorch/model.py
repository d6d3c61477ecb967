"""What the kinds of models have in common: how their tensors are named, and how they are called."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple, Union

import torch
from saved_models.interface import ModelTensor
from saved_models.settings import ModelSettings

Key = Union[int, str]
"""Where an output is in what a call returns: a position, or a name."""


class Model(Protocol):
    """A model that was read from its file.

    Attributes:
        described: Its interface as its file tells it, for errors.
        inputs: Types and shapes of its inputs with the names that they get where the configuration gives none; None
            for an input about which the file says nothing but the name.
        input_names: These names.
        output_names: The names of outputs, in order; empty if only a call tells how many there are.
        device: Where its inputs must be.
    """

    described: str
    inputs: Tuple[Optional[ModelTensor], ...]
    input_names: Tuple[str, ...]
    output_names: Tuple[str, ...]
    device: torch.device

    def bind(self, settings: ModelSettings) -> Dict[str, Key]:
        """Compare the configuration with the model, and find out where each output is in what a call returns.

        Raises:
            ModelLoadError: With the first difference.
        """

    def call(self, values: Mapping[str, Any]) -> Any:
        """What the model returns for inputs by the configuration's names: tensors, and lists of strings."""


def require_tensors(settings: ModelSettings, described: str) -> None:
    """Refuse a configuration without inputs or without outputs, in the reference's words.

    Raises:
        ModelLoadError: With what the file says of itself.
    """
    for kind, tensors in (("input", settings.inputs), ("output", settings.outputs)):
        if not tensors:
            raise settings.error(
                f"model configuration must contain at least one {kind}, none were specified. Its file has {described}"
            )


def as_outputs(result: Any) -> Union[Sequence[Any], Mapping[str, Any]]:
    """What a call returned, as a sequence of outputs or as outputs by name."""
    if isinstance(result, Mapping):
        return result
    if isinstance(result, tuple) or (isinstance(result, list) and not _is_strings(result)):
        return result
    return (result,)


def _is_strings(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def output_at(outputs: Union[Sequence[Any], Mapping[str, Any]], name: str, key: Key) -> Any:
    """The output of this name.

    Raises:
        IndexError: If there is none.
    """
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
