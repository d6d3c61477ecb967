"""Inputs and outputs that contradict themselves, with the reference's texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from naiad.config.model import model_config_pb2 as pb
from naiad.errors import ConfigError

__all__ = ["validate_batch_tensors", "validate_inputs_and_outputs"]

_VARIABLE = -1
_IMAGE_DIMS = 3
_RULE = f"must be integer >= 1, or {_VARIABLE} to indicate a variable-size dimension"


def validate_inputs_and_outputs(message: pb.ModelConfig) -> None:
    """Check name, datatype, dims and reshape of every input and output.

    Raises:
        ConfigError: At the first contradiction.
    """
    try:
        for tensor in message.input:
            _validate_tensor(tensor, "model input ", message)
            if tensor.format != pb.ModelInput.FORMAT_NONE and len(tensor.dims) != _IMAGE_DIMS:
                raise ConfigError("model input NHWC/NCHW require 3 dims")
            _refuse_tensorrt_only(tensor, message.platform, "input")
        for output in message.output:
            _validate_tensor(output, "model output ", message)
            _refuse_tensorrt_only(output, message.platform, "output")
    except ConfigError as error:
        raise ConfigError(f"{error.message} for {message.name}") from error


def validate_batch_tensors(message: pb.ModelConfig) -> None:
    """Check `batch_input` and `batch_output` against inputs and outputs.

    Raises:
        ConfigError: At the first contradiction.
    """
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    try:
        for batch_input in message.batch_input:
            _validate_batch_input(batch_input, inputs)
        for batch_output in message.batch_output:
            _validate_batch_output(batch_output, inputs, outputs)
    except ConfigError as error:
        raise ConfigError(f"{error.message} for {message.name}") from error


def _validate_tensor(tensor: pb.ModelInput | pb.ModelOutput, prefix: str, message: pb.ModelConfig) -> None:
    if not tensor.name:
        raise ConfigError(f"{prefix}must specify 'name'")
    who = f"{prefix}'{tensor.name}'"
    # proto3 lets numbers through that no datatype has.
    if tensor.data_type == pb.TYPE_INVALID or tensor.data_type not in pb.DataType.values():
        raise ConfigError(f"{who} must specify 'data_type'")
    if not tensor.dims:
        raise ConfigError(f"{who} must specify 'dims'")
    reshape = tensor.reshape.shape if tensor.HasField("reshape") else None
    if reshape is not None and not reshape and message.max_batch_size == 0:
        raise ConfigError(f"{who} cannot have empty reshape for non-batching model as scalar tensors are not supported")
    _validate_dims(tensor.dims, f"{who} dimension")
    if reshape is not None:
        _validate_dims(reshape, f"{who} reshape dimensions")
        _validate_reshape(tensor.dims, reshape, who)


def _validate_dims(dims: Iterable[int], what: str) -> None:
    if any(dim < 1 and dim != _VARIABLE for dim in dims):
        raise ConfigError(f"{what} {_RULE}")


def _validate_reshape(dims: Sequence[int], reshape: Sequence[int], who: str) -> None:
    """Between variable dimensions, which map in order, both shapes must have the same number of elements."""
    before, after = _sizes_between_variables(dims), _sizes_between_variables(reshape)
    if (len(before) == 1) != (len(after) == 1):
        raise ConfigError(f"{who} has different size for dims and reshape")
    if len(before) != len(after):
        raise ConfigError(f"{who} has different number of variable-size dimensions for dims and reshape")
    if before != after:
        raise ConfigError(f"{who} has different size for dims and reshape")


def _sizes_between_variables(shape: Sequence[int]) -> list[int]:
    cuts = [index for index, dim in enumerate(shape) if dim == _VARIABLE]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(shape)]
    return [math.prod(shape[start:end]) for start, end in zip(starts, ends, strict=True)]


def _refuse_tensorrt_only(tensor: pb.ModelInput | pb.ModelOutput, platform: str, direction: str) -> None:
    on_tensorrt = platform == "tensorrt_plan"
    if tensor.is_shape_tensor and not on_tensorrt:
        raise ConfigError("shape tensors are only supported for TensorRT platform")
    if not tensor.is_non_linear_format_io:
        return
    if not on_tensorrt:
        raise ConfigError("Non-linear IO format is only supported for the TensorRT platform")
    if len(tensor.dims) != _IMAGE_DIMS:
        raise ConfigError(f"Non-linear IO format {direction} requires 3 dims")


def _validate_batch_input(tensor: pb.BatchInput, inputs: set[str]) -> None:
    kind = _kind_name(pb.BatchInput.Kind.items(), tensor.kind, "input")
    if len(tensor.source_input) != 1:
        raise ConfigError(f"batch input kind '{kind}' expects 1 source input, got {len(tensor.source_input)}")
    if tensor.data_type not in {pb.TYPE_INT32, pb.TYPE_FP32}:
        raise ConfigError("batch input data type must be TYPE_INT32 or TYPE_FP32")
    _validate_sources(tensor.source_input, inputs)


def _validate_batch_output(tensor: pb.BatchOutput, inputs: set[str], outputs: set[str]) -> None:
    kind = _kind_name(pb.BatchOutput.Kind.items(), tensor.kind, "output")
    if len(tensor.source_input) != 1:
        raise ConfigError(f"batch output kind '{kind}' expects 1 source input, got {len(tensor.source_input)}")
    _validate_sources(tensor.source_input, inputs)
    seen: set[str] = set()
    for name in tensor.target_name:
        if name not in outputs:
            raise ConfigError(f"unknown target output name '{name}'")
        if name in seen:
            raise ConfigError(f"target output name '{name}' can only be specified once")
        seen.add(name)


def _kind_name(kinds: Iterable[tuple[str, int]], kind: int, direction: str) -> str:
    """The name of a kind; the reference prints an unknown one without a name too."""
    for name, number in kinds:
        if number == kind:
            return name
    raise ConfigError(f"unknown batch {direction} kind ''")


def _validate_sources(sources: Iterable[str], inputs: set[str]) -> None:
    for name in sources:
        if name not in inputs:
            raise ConfigError(f"unknown source input name '{name}'")
