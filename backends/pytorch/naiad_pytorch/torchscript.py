"""Models in TorchScript.

How tensors are named, and the texts about it, are the reference's (pytorch_backend src/pt/model_instance_state.cc).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import triton_python_backend_utils as pb_utils
from saved_models.interface import ModelTensor
from saved_models.settings import ModelSettings, TensorSettings, batch_inputs, control_inputs, error

from naiad_pytorch.contents import Content, content_of
from naiad_pytorch.model import Key, require_tensors
from naiad_pytorch.options import Options

_SEPARATOR = "__"
_TENSOR, _LIST, _DICT, _CLASS = "TensorType", "ListType", "DictType", "ClassType"


class ScriptModel:
    """A module of TorchScript, on a device."""

    inputs: Tuple[Optional[ModelTensor], ...]

    def __init__(self, path: Path, settings: ModelSettings, options: Options) -> None:
        self._module = _load(path, settings, options)
        schema = self._module.forward.schema
        arguments = [argument for argument in schema.arguments if argument.type.kind() != _CLASS]
        self._kinds = [argument.type.kind() for argument in arguments]
        self._types = [argument.type.annotation_str for argument in arguments]
        given = ", ".join(f"{argument.name}: {argument.type.annotation_str}" for argument in arguments)
        returned = ", ".join(result.type.annotation_str for result in schema.returns)
        self.described = f"forward({given}) -> {returned}"
        self._is_dictionary = self._kinds == [_DICT]
        self._order: List[str] = []
        self.input_names = () if self._is_dictionary else tuple(argument.name for argument in arguments)
        self.inputs = (None,) * len(self.input_names)
        self.output_names = ()
        self.device = torch.device("cpu") if options.device is None else options.device

    def bind(self, settings: ModelSettings) -> Dict[str, Key]:
        """As `Model.bind`, in the reference's words."""
        require_tensors(settings, self.described)
        for kind, tensors in (("input", settings.inputs), ("output", settings.outputs)):
            _check_strings(kind, tensors, settings)
        controls = [*control_inputs(settings.config), *batch_inputs(settings.config)]
        if not self._is_dictionary:
            self._check_arguments(settings, len(settings.inputs) + len(controls))
        self._order = self._ordered_inputs(settings, controls)
        return self._output_positions(settings)

    def call(self, values: Mapping[str, Any]) -> Any:
        if self._is_dictionary:
            return self._module(dict(values))
        return self._module(*[values.get(name) for name in self._order])

    def _check_arguments(self, settings: ModelSettings, count: int) -> None:
        if _DICT in self._kinds[1:]:
            raise settings.error(
                "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                "supported."
            )
        for kind, name in zip(self._kinds, self._types):
            if kind not in {_TENSOR, _LIST}:
                raise settings.error(
                    f"An input of type '{name}' was detected in the model. Only a single input of type "
                    "Dict(str, Tensor) or input(s) of type Tensor are supported."
                )
        if count != len(self._kinds):
            raise settings.error(
                f"configuration expects {count} inputs, model provides {len(self._kinds)}: {self.described}"
            )

    def _ordered_inputs(self, settings: ModelSettings, controls: List[str]) -> List[str]:
        """The configuration's names of inputs in the order of `forward`."""
        names = [tensor.name for tensor in settings.inputs]
        if self._is_dictionary:
            return names
        by_index = {name: _index(name) for name in [*names, *controls]}
        for name in controls:
            if by_index[name] is None:
                raise settings.error(f"input '{name}' does not follow <name>__<index> naming convention.")
        if set(names) <= set(self.input_names) and not settings.states:
            positions = {name: self.input_names.index(name) for name in names}
            positions.update({name: by_index[name] or 0 for name in controls})
        elif None not in by_index.values():
            positions = {name: index or 0 for name, index in by_index.items()}
        else:
            _refuse_states(settings)
            odd = next(name for name, index in by_index.items() if index is None)
            pb_utils.Logger.log_warn(
                f"input '{odd}' or previous input(s) are neither an input argument to the model '{settings.name}' nor "
                "do they follow the <name>__<index> naming convention. Falling back to enforcing strict ordering from "
                "model configuration."
            )
            positions = {name: number for number, name in enumerate(names)}
            positions.update({name: by_index[name] or 0 for name in controls})
        if sorted(positions.values()) != list(range(len(self._kinds))):
            given = ", ".join(f"{name} at {index}" for name, index in sorted(positions.items(), key=lambda one: one[1]))
            raise settings.error(
                f"its inputs are not one for each of the model's {len(self._kinds)}: {given}; the model has "
                f"{self.described}"
            )
        return sorted(positions, key=lambda name: positions[name])

    def _output_positions(self, settings: ModelSettings) -> Dict[str, Key]:
        names = [tensor.name for tensor in settings.outputs]
        indices = {name: _index(name) for name in names}
        odd = next((name for name, index in indices.items() if index is None), None)
        if odd is None:
            return {name: index or 0 for name, index in indices.items()}
        _refuse_states(settings)
        if _SEPARATOR in odd:
            pb_utils.Logger.log_warn(
                f"output '{odd}' or previous output(s) of the model '{settings.name}' do not follow the "
                "<name>__<index> naming convention. Falling back to enforcing strict ordering from model "
                "configuration."
            )
        return {name: number for number, name in enumerate(names)}


def _load(path: Path, settings: ModelSettings, options: Options) -> Any:
    # In the mode in which it is executed: tensors of inference mode cannot be used outside of it.
    with torch.inference_mode(options.is_inference):
        try:
            module = torch.jit.load(str(path), map_location=options.device)
        except Exception as problem:  # noqa: BLE001 - PyTorch raises anything
            raise error(f"failed to load model '{settings.name}': {_explain(path, problem)}") from None
        if not hasattr(module, "forward"):
            raise settings.error(f"'{path}' has no method forward; save a module that has one by torch.jit.save")
        return module.eval()


def _explain(path: Path, problem: Exception) -> str:
    content = content_of(path)
    sentence = str(problem).strip().split("\n", 1)[0]
    read = f"PyTorch {torch.__version__} cannot read '{path}' as TorchScript"
    if content is Content.SCRIPT:
        return f"{read}: {sentence}; a file of a newer version needs an environment with that version"
    cure = "copy it again, or write it by torch.jit.script(model).save('model.pt')"
    if content is Content.WEIGHTS:
        cure = "write torch.jit.script(model).save('model.pt'), or put the class of the model into a model.py beside it"
    return f"{read}: it is {content.value}; {cure}"


def _check_strings(kind: str, tensors: Tuple[TensorSettings, ...], settings: ModelSettings) -> None:
    for tensor in tensors:
        if tensor.data_type == "TYPE_STRING" and len(tensor.dims) + bool(settings.max_batch_size) > 1:
            raise settings.error(
                f"Triton only supports 1 dimensional List of String as {kind} for '{tensor.name}' for model "
                f"'{settings.name}'"
            )


def _refuse_states(settings: ModelSettings) -> None:
    if settings.states:
        raise settings.error(
            f"PyTorch model '{settings.name}' is using sequence batching with state but not all inputs and outputs "
            "follow the <name>__<index> naming convention. "
        )


def _index(name: str) -> Optional[int]:
    """The index in a name such as `INPUT__0`; None without one."""
    _, separator, text = name.partition(_SEPARATOR)
    return int(text) if separator and text.isascii() and text.isdigit() else None
