"""Checks of one model configuration for contradictions. Texts are the reference's (CORE src/model_config_utils.cc).

The structure is checked when a configuration is read. Inputs and outputs are checked then, too, if the model completes
nothing, else after auto-completion. Ensembles are in `ensemble`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.ensemble_checks import ENSEMBLE_PLATFORM, validate_ensemble
from naiad.core.errors import Code, ConfigError

# Each instance is a process; without a limit, a typing error such as 10**9 would exhaust memory with names alone.
_MAX_INSTANCES = 4096

# Backends that only run models of these platforms; others take any.
_PLATFORMS = {
    "tensorflow": frozenset({"tensorflow_graphdef", "tensorflow_savedmodel"}),
    "tensorrt": frozenset({"tensorrt_plan"}),
    "onnxruntime": frozenset({"onnxruntime_onnx"}),
    "pytorch": frozenset({"pytorch_libtorch", "torch_aoti"}),
}

_Control = pb.ModelSequenceBatching.Control

_CORRELATION_ID_TYPES = frozenset({pb.TYPE_UINT64, pb.TYPE_INT64, pb.TYPE_UINT32, pb.TYPE_INT32, pb.TYPE_STRING})

_VARIABLE = -1
_IMAGE_DIMS = 3
_RULE = f"must be integer >= 1, or {_VARIABLE} to indicate a variable-size dimension"


def validate_name(message: pb.ModelConfig, directory_name: str) -> None:
    """Check that the model has the name of its directory."""
    if message.name != directory_name:
        raise ConfigError(
            f"unexpected directory name '{directory_name}' for model '{message.name}', directory name must equal "
            "model name"
        )


def validate(message: pb.ModelConfig, *, with_io: bool) -> None:
    """Check a normalised configuration."""
    _validate_backend(message)
    if message.max_batch_size < 0:
        raise ConfigError(f"'max_batch_size' must be non-negative value for {message.name}")
    if message.HasField("dynamic_batching"):
        _validate_dynamic_batching(message)
    if message.HasField("sequence_batching"):
        _validate_sequence_batching(message)
    if message.HasField("ensemble_scheduling"):
        validate_ensemble(message)
    elif message.platform == ENSEMBLE_PLATFORM:
        raise ConfigError(
            f"ensemble scheduling must be set for ensemble {message.name} whose platform is {ENSEMBLE_PLATFORM}"
        )
    validate_response_cache(message)
    for control in message.model_metrics.metric_control:
        _validate_metric_control(control)
    if with_io:
        _validate_inputs_and_outputs(message)
        _validate_batch_tensors(message)


def validate_response_cache(message: pb.ModelConfig) -> None:
    """Check that a model with a response cache is not decoupled: only a single response can be cached.

    Whether an ensemble is decoupled is known once the models of its steps are loaded.
    """
    if message.model_transaction_policy.decoupled and message.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {message.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )


def validate_instance_groups(message: pb.ModelConfig, gpu_count: Callable[[], int] = lambda: 0) -> None:
    """Check normalised instance groups; *gpu_count* is called only if a group is for GPUs."""
    if message.HasField("ensemble_scheduling"):
        return
    for group in message.instance_group:
        _validate_instance_group(message, group, gpu_count)
    count = sum(group.count * max(len(group.gpus), 1) for group in message.instance_group)
    if count > _MAX_INSTANCES:
        raise ConfigError(
            f"the instance groups of model {message.name} ask for {count} instances, each a process; at most "
            f"{_MAX_INSTANCES} can be served: lower 'count'"
        )


def _validate_backend(message: pb.ModelConfig) -> None:
    if not message.name:
        raise ConfigError("model configuration must specify 'name'")
    if not message.backend and message.platform != ENSEMBLE_PLATFORM:
        raise ConfigError(f"unexpected platform type '{message.platform}' for {message.name}")
    if message.backend and message.platform == ENSEMBLE_PLATFORM:
        raise ConfigError(
            f"Ensemble model '{message.name}' must have platform type '{message.platform}' and empty backend type"
        )
    if message.platform not in _PLATFORMS.get(message.backend, {message.platform}):
        raise ConfigError(f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}")


def _validate_gpus(who: str, group: pb.ModelInstanceGroup, gpu_count: Callable[[], int]) -> None:
    available = gpu_count()
    if not available:
        # The text of a reference without GPU support; scripts look for its beginning.
        raise ConfigError(
            f"{who} has kind KIND_GPU but server does not support GPUs: it found none that NVIDIA's driver reports and "
            "CUDA_VISIBLE_DEVICES leaves; use KIND_CPU, or no kind for a GPU where there is one, or start with "
            "--gpu-fallback=cpu, which places such groups on the CPU"
        )
    for device in group.gpus:
        if not 0 <= device < available:
            raise ConfigError(
                f"{who} specifies invalid or unsupported gpu id {device}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of 6.000000 are: {' '.join(map(str, range(available)))}"
            )


def _validate_instance_group(
    message: pb.ModelConfig, group: pb.ModelInstanceGroup, gpu_count: Callable[[], int]
) -> None:
    who = f"instance group {group.name} of model {message.name}"
    kinds = pb.ModelInstanceGroup
    if group.kind == kinds.KIND_GPU:
        _validate_gpus(who, group, gpu_count)
        return
    if group.kind not in {kinds.KIND_CPU, kinds.KIND_MODEL}:
        raise ConfigError(f"{who} has unexpected kind KIND_AUTO", code=Code.INTERNAL)
    if group.gpus:
        raise ConfigError(f"{who} has kind {kinds.Kind.Name(group.kind)} but specifies one or more GPUs")
    if group.profile and message.platform != "tensorrt_plan":
        # The space is also missing in the reference.
        raise ConfigError(
            f"{who} and platform {message.platform}specifies profile field which is only supported for TensorRT models"
        )


def _validate_metric_control(control: pb.ModelMetrics.MetricControl) -> None:
    if not control.HasField("metric_identifier"):
        raise ConfigError("metric control must specify 'metric_identifier'")
    if not control.metric_identifier.family:
        raise ConfigError("metric identifier must specify non-empty 'family'")
    if not control.HasField("histogram_options"):
        raise ConfigError("metric control must specify 'histogram_options'")
    if not control.histogram_options.buckets:
        raise ConfigError("histogram options must specify non-empty 'buckets'")


# Dynamic and sequence batching.


def _validate_dynamic_batching(message: pb.ModelConfig) -> None:
    batching = message.dynamic_batching
    _validate_sizes(batching.preferred_batch_size, "dynamic batching preferred size", message)
    if batching.priority_levels:
        _validate_priorities(batching, message.name)
    if batching.preserve_ordering:
        _validate_ordering(batching, message.name)


def _validate_sequence_batching(message: pb.ModelConfig) -> None:
    if message.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {message.name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    batching = message.sequence_batching
    _validate_control_tensors(batching, message.name)
    for kind in (_Control.CONTROL_SEQUENCE_START, _Control.CONTROL_SEQUENCE_END, _Control.CONTROL_SEQUENCE_READY):
        for control in _only(batching, kind, message.name):
            _validate_flag(control, message.name)
    for control in _only(batching, _Control.CONTROL_SEQUENCE_CORRID, message.name):
        _validate_correlation_id(control, message.name)
    if batching.HasField("oldest"):
        _validate_sizes(batching.oldest.preferred_batch_size, "sequence batching preferred batch size", message)
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise ConfigError(f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {message.name}")


def _validate_sizes(sizes: Iterable[int], what: str, message: pb.ModelConfig) -> None:
    for size in sizes:
        if size <= 0:
            raise ConfigError(f"{what} must be positive for {message.name}")
        if size > message.max_batch_size:
            raise ConfigError(f"{what} must be <= max batch size for {message.name}")


def _validate_priorities(batching: pb.ModelDynamicBatching, model: str) -> None:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise ConfigError(f"default priority level must be in range [1, {levels}] for {model}")
    if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        raise ConfigError(f"priority queue policy must have priority level in range [1, {levels}] for {model}")


def _validate_ordering(batching: pb.ModelDynamicBatching, model: str) -> None:
    if batching.priority_levels > 1:
        raise ConfigError(f"Only one priority level is allowed when 'preserve_ordering' is true for {model}")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            raise ConfigError(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model}"
            )


def _validate_control_tensors(batching: pb.ModelSequenceBatching, model: str) -> None:
    seen: set[str] = set()
    for tensor in batching.control_input:
        if not tensor.name:
            raise ConfigError(f"sequence batching control tensor must have a name for {model}")
        if tensor.name in seen:
            raise ConfigError(
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {model}"
            )
        seen.add(tensor.name)


def _only(
    batching: pb.ModelSequenceBatching, kind: _Control.Kind.ValueType, model: str
) -> Iterator[pb.ModelSequenceBatching.Control]:
    """Yield the control of a kind, if there is one; two are an error."""
    controls = [control for tensor in batching.control_input for control in tensor.control if control.kind == kind]
    yield from controls[:1]
    if len(controls) > 1:
        raise ConfigError(f"sequence batching specifies multiple {_Control.Kind.Name(kind)} tensors for {model}")


def _validate_flag(control: pb.ModelSequenceBatching.Control, model: str) -> None:
    """Check that START, END or READY has the two values of exactly one type."""
    where = f"for {_Control.Kind.Name(control.kind)} for {model}"
    pairs = _pairs(control)
    if not pairs:
        raise ConfigError(
            f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' {where}"
        )
    if len(pairs) > 1:
        raise ConfigError(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' {where}"
        )
    for name, count in pairs.items():
        if count != len(("false", "true")):
            raise ConfigError(f"sequence batching control '{name}' must have exactly 2 entries {where}")


def _validate_correlation_id(control: pb.ModelSequenceBatching.Control, model: str) -> None:
    kind = _Control.Kind.Name(control.kind)
    if _pairs(control):
        raise ConfigError(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {kind} for {model}"
        )
    if control.data_type not in _CORRELATION_ID_TYPES:
        raise ConfigError(
            f"unexpected data type for control {kind} for {model}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def _pairs(control: pb.ModelSequenceBatching.Control) -> dict[str, int]:
    counts = {name: len(getattr(control, name)) for name in ("int32_false_true", "fp32_false_true", "bool_false_true")}
    return {name: count for name, count in counts.items() if count}


# Inputs and outputs.


def _validate_inputs_and_outputs(message: pb.ModelConfig) -> None:
    try:
        for tensor in message.input:
            _validate_tensor(tensor, "model input ", message)
            if tensor.format != pb.ModelInput.FORMAT_NONE and len(tensor.dims) != _IMAGE_DIMS:
                raise ConfigError("model input NHWC/NCHW require 3 dims")
            _reject_tensorrt_settings(tensor, message.platform, "input")
        for output in message.output:
            _validate_tensor(output, "model output ", message)
            _reject_tensorrt_settings(output, message.platform, "output")
    except ConfigError as error:
        raise ConfigError(f"{error.message} for {message.name}") from error


def _validate_batch_tensors(message: pb.ModelConfig) -> None:
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    try:
        for batch_input in message.batch_input:
            _validate_kind(pb.BatchInput.Kind.items(), batch_input, "input")
            if batch_input.data_type not in {pb.TYPE_INT32, pb.TYPE_FP32}:
                raise ConfigError("batch input data type must be TYPE_INT32 or TYPE_FP32")
            _validate_sources(batch_input.source_input, inputs)
        for batch_output in message.batch_output:
            _validate_kind(pb.BatchOutput.Kind.items(), batch_output, "output")
            _validate_sources(batch_output.source_input, inputs)
            _validate_targets(batch_output.target_name, outputs)
    except ConfigError as error:
        raise ConfigError(f"{error.message} for {message.name}") from error


def _validate_tensor(tensor: pb.ModelInput | pb.ModelOutput, prefix: str, message: pb.ModelConfig) -> None:
    if not tensor.name:
        raise ConfigError(f"{prefix}must specify 'name'")
    who = f"{prefix}'{tensor.name}'"
    # proto3 accepts enum numbers that are not declared.
    if tensor.data_type == pb.TYPE_INVALID or tensor.data_type not in pb.DataType.DESCRIPTOR.values_by_number:
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
    """Check a reshape: variable dimensions map in order, and between them both shapes have as many elements."""
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


def _reject_tensorrt_settings(tensor: pb.ModelInput | pb.ModelOutput, platform: str, direction: str) -> None:
    on_tensorrt = platform == "tensorrt_plan"
    if tensor.is_shape_tensor and not on_tensorrt:
        raise ConfigError("shape tensors are only supported for TensorRT platform")
    if not tensor.is_non_linear_format_io:
        return
    if not on_tensorrt:
        raise ConfigError("Non-linear IO format is only supported for the TensorRT platform")
    if len(tensor.dims) != _IMAGE_DIMS:
        raise ConfigError(f"Non-linear IO format {direction} requires 3 dims")


def _validate_kind(kinds: Iterable[tuple[str, int]], tensor: pb.BatchInput | pb.BatchOutput, direction: str) -> None:
    kind = next((name for name, number in kinds if number == tensor.kind), None)
    if kind is None:  # without its name, as in the reference
        raise ConfigError(f"unknown batch {direction} kind ''")
    if len(tensor.source_input) != 1:
        raise ConfigError(f"batch {direction} kind '{kind}' expects 1 source input, got {len(tensor.source_input)}")


def _validate_targets(targets: Iterable[str], outputs: set[str]) -> None:
    seen: set[str] = set()
    for name in targets:
        if name not in outputs:
            raise ConfigError(f"unknown target output name '{name}'")
        if name in seen:
            raise ConfigError(f"target output name '{name}' can only be specified once")
        seen.add(name)


def _validate_sources(sources: Iterable[str], inputs: set[str]) -> None:
    for name in sources:
        if name not in inputs:
            raise ConfigError(f"unknown source input name '{name}'")
