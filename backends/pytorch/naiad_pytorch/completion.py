"""Completes a configuration with what a model's file tells.

The reference completes none for this backend. A package tells its inputs whole. What a model returns is found by a
trial with zeros, also where the configuration gives inputs and no outputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from saved_models.interface import ModelInterface, ModelTensor, complete, entry, is_complete
from saved_models.settings import ModelSettings, TensorSettings, placed, read_config

from naiad_pytorch.files import open_model
from naiad_pytorch.model import Model
from naiad_pytorch.options import Options, read_options
from naiad_pytorch.runner import ModelRunner
from naiad_pytorch.tensors import DATA_TYPES, TORCH_TYPES

_SIZES = (2, 3)  # sizes that a trial gives to dimensions that vary; exported programs take no 1 for them


def complete_config(config: Any) -> Any:
    """`auto_complete_config` of this backend; ModelLoadError if the file cannot be read, or tells too little."""
    written: Dict[str, Any] = config.as_dict()
    if is_complete(written):
        return config
    # Code for one kind of device is read on such a device alone.
    settings = placed(read_config(written), has_gpu=torch.cuda.is_available())
    options = read_options(settings)
    model = open_model(settings, options)
    if written.get("input"):
        leading = bool(settings.max_batch_size)
        outputs = _try_out(model, settings, options, settings.inputs, leading=leading)
        written["output"] = [_entry(tensor, settings) for tensor in outputs]
        return config
    if written.get("output"):
        raise _untold(model, settings)
    inputs = [tensor for tensor in model.inputs if tensor is not None]
    if not inputs or len(inputs) != len(model.inputs):
        raise _untold(model, settings)
    given = tuple(TensorSettings(tensor.name, tensor.data_type, tensor.shape) for tensor in inputs)
    outputs = _try_out(model, settings, options, given, leading=False)
    return complete(config, ModelInterface(inputs=tuple(inputs), outputs=tuple(outputs)))


def _untold(model: Model, settings: ModelSettings) -> Exception:
    inputs = " ".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}' for name in model.input_names)
    example = f'{inputs} output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }}'.strip()
    return settings.error(
        f"its configuration lacks inputs, and its file does not tell their types and shapes, only {model.described}; "
        f"write them in config.pbtxt, for example: {example}"
    )


def _try_out(
    model: Model, settings: ModelSettings, options: Options, inputs: Sequence[TensorSettings], *, leading: bool
) -> List[ModelTensor]:
    """The outputs of a call with zeros: sizes that differ between two calls vary."""
    placeholder = TensorSettings("OUTPUT__0", "TYPE_INVALID", ())
    bound = replace(settings, inputs=tuple(inputs), outputs=(placeholder,), states=())
    bound = bound if leading else replace(bound, max_batch_size=0)
    runner = ModelRunner(model, bound, options)
    answers = [_answers(runner, model, inputs, size, settings, leading=leading) for size in _SIZES]
    return [
        ModelTensor(name, data_type, tuple(a if a == b else -1 for a, b in zip(shape, other)))
        for (name, data_type, shape), (_, _, other) in zip(*answers)
    ]


def _answers(
    runner: ModelRunner,
    model: Model,
    inputs: Sequence[TensorSettings],
    size: int,
    settings: ModelSettings,
    *,
    leading: bool,
) -> List[Tuple[str, str, Tuple[int, ...]]]:
    values = {tensor.name: _zeros(tensor, size, model.device, leading=leading) for tensor in inputs}
    try:
        outputs = runner.try_out(values)
    except Exception as problem:  # noqa: BLE001 - models raise anything
        shapes = ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in inputs)
        raise settings.error(
            f"its configuration lacks outputs, and a trial with zeros ({shapes}) failed: "
            f"{str(problem).strip().splitlines()[-1:] or type(problem).__name__}; write them in config.pbtxt"
        ) from None
    if not isinstance(outputs, Mapping):
        outputs = {f"OUTPUT__{number}": value for number, value in enumerate(outputs)}
    return [(name, *_described(name, value, settings)) for name, value in outputs.items()]


def _zeros(tensor: TensorSettings, size: int, device: torch.device, *, leading: bool) -> Any:
    shape = [size] * leading + [size if each < 0 else each for each in tensor.dims]
    if tensor.data_type == "TYPE_STRING":
        return [""] * int(np.prod(shape))
    return torch.zeros(shape, dtype=TORCH_TYPES[tensor.data_type], device=device)


def _described(name: str, value: Any, settings: ModelSettings) -> Tuple[str, Tuple[int, ...]]:
    if isinstance(value, list):
        return "TYPE_STRING", (len(value),)
    dtype: Any = getattr(value, "dtype", None)
    data_type: Optional[str] = DATA_TYPES.get(dtype)
    if data_type is None:
        kind = dtype or type(value).__name__
        raise settings.error(f"output '{name}' is {kind}, and must be of type Tensor or List[str].")
    return data_type, tuple(value.shape)


def _entry(tensor: ModelTensor, settings: ModelSettings) -> Dict[str, Any]:
    leading = bool(settings.max_batch_size)
    if leading and tensor.shape[:1] != (-1,):
        raise settings.error(
            f"output '{tensor.name}' has no row for each of a batch: its shape is {list(tensor.shape)} for batches of "
            "two sizes; remove max_batch_size"
        )
    return entry(tensor, leading, settings.name, "output")
