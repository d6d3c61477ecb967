"""What a saved model says about its tensors, compared with its configuration or written into it.

The rules and texts are those of the reference's backend for ONNX (onnxruntime_backend src/onnxruntime.cc,
src/onnxruntime_utils.cc), the only one that completes and checks configurations whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import triton_python_backend_utils as pb_utils

from saved_models.settings import ModelSettings, TensorSettings, batch_inputs, control_inputs, error, read_config

_DEFAULT_MAX_BATCH_SIZE = "4"  # of the reference; `--backend-config=<backend>,default-max-batch-size=<n>` gives another


@dataclass(frozen=True)
class ModelTensor:
    """An input or output of a saved model."""

    name: str
    data_type: str  # such as `TYPE_FP32`; empty if tensors of the protocol have no such type
    shape: Tuple[int, ...]  # sizes with the rows of a batch; -1 for those that vary; empty for a scalar
    described: str = ""  # what the library calls its type, for errors
    is_optional: bool = False  # whether requests may leave it out


@dataclass(frozen=True)
class ModelInterface:
    """The tensors of a saved model."""

    inputs: Tuple[ModelTensor, ...]
    outputs: Tuple[ModelTensor, ...]
    overridable: Tuple[ModelTensor, ...] = ()  # further inputs, which have a value in the file and may be left out

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of each tensor varies."""
        return all(tensor.shape[:1] == (-1,) for tensor in (*self.inputs, *self.outputs))


def is_complete(config: Mapping[str, Any]) -> bool:
    """Whether the configuration has inputs and outputs: then nothing is added to it."""
    return bool((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete_from(config: Any, describe: Callable[[ModelSettings], ModelInterface]) -> Any:
    """`auto_complete_config` of a backend: completes what is not complete by the tensors that *describe* gives."""
    written = config.as_dict()
    return config if is_complete(written) else complete(config, describe(read_config(written)))


def complete(config: Any, interface: ModelInterface) -> Any:
    """Add batch size, scheduler, inputs and outputs to a configuration without inputs or without outputs; return it."""
    written: Dict[str, Any] = config.as_dict()
    name = written["name"]
    if interface.can_batch:
        _complete_batching(config)
    elif written.get("max_batch_size"):
        raise error(
            f"autofill failed for model '{name}': model does not support batching while non-zero max_batch_size is "
            "specified"
        )
    leading = int(bool(written.get("max_batch_size")))
    for kind, tensors in (("input", interface.inputs), ("output", interface.outputs)):
        if not written.get(kind):
            written[kind] = [entry(tensor, leading, name, kind) for tensor in tensors]
    return config


def _complete_batching(config: Any) -> None:
    written: Dict[str, Any] = config.as_dict()
    if not written.get("max_batch_size"):
        size = max(int(pb_utils.get_backend_config().get("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)), 0)
        config.set_max_batch_size(size)
        pb_utils.Logger.log_warn(
            f"autofilled max_batch_size to {size} for model '{written['name']}' since batching is supported but no "
            "max_batch_size is specified in model configuration. Must specify max_batch_size to utilize autofill with "
            "a larger max batch size"
        )
    if written["max_batch_size"] > 1 and "sequence_batching" not in written and "dynamic_batching" not in written:
        config.set_dynamic_batching()


def entry(tensor: ModelTensor, leading: int, model: str, kind: str) -> Dict[str, Any]:
    """The tensor in a configuration, without the rows of a batch where that is *leading*."""
    if not tensor.data_type:
        raise _unsupported(tensor, model, kind)
    dims = list(tensor.shape[leading:])
    written: Dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type, "dims": dims or [1]}
    if not dims and leading:
        written["reshape"] = {"shape": []}
    if tensor.is_optional and kind == "input":  # configurations have no optional outputs
        written["optional"] = True
    return written


def _unsupported(tensor: ModelTensor, model: str, kind: str) -> Exception:
    return error(
        f"unable to load model '{model}', {kind} '{tensor.name}' of the model has type {tensor.described}, and tensors "
        "of requests cannot have it; add a conversion to the model"
    )


def check(settings: ModelSettings, interface: ModelInterface) -> None:
    """Compare a complete configuration with the model; ModelLoadError for a difference, in the reference's words."""
    controls = control_inputs(settings.config)
    described = batch_inputs(settings.config)
    count = sum(not tensor.is_optional for tensor in settings.inputs) + len(controls) + len(described)
    if count != len(interface.inputs):
        raise settings.error(f"configuration expects {count} inputs, model provides {len(interface.inputs)}")
    known = {tensor.name: tensor for tensor in (*interface.inputs, *interface.overridable)}
    for name in (*controls, *described):
        if name not in known:
            raise _unexpected(name, "input", known)
    for entry in settings.config.get("batch_input") or ():
        for name in entry["target_name"]:
            _check_type(known[name], entry["data_type"], "input", settings)
    for tensor in settings.inputs:
        _check_input(tensor, known, settings)
    outputs = {tensor.name: tensor for tensor in interface.outputs}
    scattered = {name for entry in settings.config.get("batch_output") or () for name in entry["target_name"]}
    for tensor in settings.outputs:
        found = _find(tensor, outputs, settings, "output")
        if tensor.name not in scattered:
            _check_shape(tensor, found, settings, is_exact=True)


def _check_input(tensor: TensorSettings, known: Mapping[str, ModelTensor], settings: ModelSettings) -> None:
    if tensor.is_optional and settings.max_batch_size:
        raise settings.error(f"optional input '{tensor.name}' is not supported for models that support batching")
    found = _find(tensor, known, settings, "input")
    if not tensor.is_ragged:
        _check_shape(tensor, found, settings, is_exact=False)
        return
    wanted = f"configuration expects model provides input with shape [-1]  for ragged input '{tensor.name}'"
    if tensor.is_optional:
        raise settings.error(f"{wanted}, which is not supported for optional input")
    if found.shape != (-1,):
        raise settings.error(f"{wanted}, model provides {_show(found.shape)}")


def _find(tensor: TensorSettings, known: Mapping[str, ModelTensor], settings: ModelSettings, kind: str) -> ModelTensor:
    found = known.get(tensor.name)
    if found is None:
        raise _unexpected(tensor.name, kind, known)
    if not found.data_type:
        raise _unsupported(found, settings.name, kind)
    _check_type(found, tensor.data_type, kind, settings)
    return found


def _check_type(found: ModelTensor, data_type: str, kind: str, settings: ModelSettings) -> None:
    if found.data_type != data_type:
        raise settings.error(
            f"configuration expects datatype {data_type} for {kind} '{found.name}', model provides {found.data_type}"
        )


def _unexpected(name: str, kind: str, known: Mapping[str, ModelTensor]) -> Exception:
    return error(f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(known))}")


def _check_shape(tensor: TensorSettings, found: ModelTensor, settings: ModelSettings, *, is_exact: bool) -> None:
    if not found.shape and not settings.max_batch_size:
        if any(size != 1 for size in tensor.dims):
            raise settings.error(
                f"scalar tensor '{tensor.name}', should only provide 1 in the model configuration when the model "
                f"doesn't support batching. Model configuration provided: {_show(tensor.dims)}."
            )
        return
    where = f"model '{settings.name}', tensor '{tensor.name}'"
    configured: List[int] = list(tensor.dims)
    described = f"{len(configured)} dimensions (shape {_show(configured)})"
    if settings.max_batch_size:
        if found.shape[:1] != (-1,):
            raise error(
                f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
                f"dimension must be -1; but shape expected by the model is {_show(found.shape)}"
            )
        configured = [-1, *configured]
        described = (
            f"{len(configured)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
            f"explicit tensor shape, making complete shape {_show(configured)})"
        )
    if len(found.shape) == len(configured) and all(
        theirs == ours or (theirs == -1 and not is_exact) for theirs, ours in zip(found.shape, configured)
    ):
        return
    raise error(
        f"{where}: the model expects {len(found.shape)} dimensions (shape {_show(found.shape)}) but the model "
        f"configuration specifies {described}"
    )


def _show(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
