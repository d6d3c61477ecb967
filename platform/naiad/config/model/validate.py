"""Configurations that contradict themselves, with the reference's texts.

Structure is checked when a configuration is read; inputs and outputs then too if nothing will complete them, else
after the model has. `validate_tensors`, `validate_schedulers` and `validate_ensemble` hold the parts.
"""

from __future__ import annotations

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.validate_ensemble import ENSEMBLE_PLATFORM, validate_ensemble
from naiad.config.model.validate_schedulers import validate_dynamic_batching, validate_sequence_batching
from naiad.config.model.validate_tensors import validate_batch_tensors, validate_inputs_and_outputs
from naiad.errors import Code, ConfigError

__all__ = ["validate", "validate_instance_groups", "validate_name", "validate_response_cache"]

# Before they would fill the memory with their names alone.
_MOST_INSTANCES = 4096

# Backends that only run models of these platforms; others take any.
_PLATFORMS = {
    "tensorflow": frozenset({"tensorflow_graphdef", "tensorflow_savedmodel"}),
    "tensorrt": frozenset({"tensorrt_plan"}),
    "onnxruntime": frozenset({"onnxruntime_onnx"}),
    "pytorch": frozenset({"pytorch_libtorch", "torch_aoti"}),
}


def validate_name(message: pb.ModelConfig, directory_name: str) -> None:
    """Check that a model is named as its directory.

    Raises:
        ConfigError: If not.
    """
    if message.name != directory_name:
        raise ConfigError(
            f"unexpected directory name '{directory_name}' for model '{message.name}', directory name must equal "
            "model name"
        )


def validate(message: pb.ModelConfig, *, with_io: bool) -> None:
    """Check a normalised configuration.

    Args:
        message: The configuration.
        with_io: Check inputs and outputs too.

    Raises:
        ConfigError: At the first contradiction.
    """
    _validate_backend(message)
    if message.max_batch_size < 0:
        raise ConfigError(f"'max_batch_size' must be non-negative value for {message.name}")
    if message.HasField("dynamic_batching"):
        validate_dynamic_batching(message)
    if message.HasField("sequence_batching"):
        validate_sequence_batching(message)
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
        validate_inputs_and_outputs(message)
        validate_batch_tensors(message)


def validate_response_cache(message: pb.ModelConfig) -> None:
    """Check that a model whose responses shall be kept has one for each request.

    An ensemble's policy follows from its steps, so that this is known when they are loaded.

    Raises:
        ConfigError: If it may have any number of them.
    """
    if message.model_transaction_policy.decoupled and message.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {message.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )


def validate_instance_groups(message: pb.ModelConfig) -> None:
    """Check instance groups after they were normalised: what they ask for must exist on a machine without GPUs.

    Raises:
        ConfigError: At the first group that does not.
    """
    if message.HasField("ensemble_scheduling"):
        return
    for group in message.instance_group:
        _validate_instance_group(message, group)
    count = sum(group.count for group in message.instance_group)
    if count > _MOST_INSTANCES:
        raise ConfigError(
            f"the instance groups of model {message.name} ask for {count} instances, each a process; at most "
            f"{_MOST_INSTANCES} can be served: lower 'count'"
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


def _validate_instance_group(message: pb.ModelConfig, group: pb.ModelInstanceGroup) -> None:
    who = f"instance group {group.name} of model {message.name}"
    kinds = pb.ModelInstanceGroup
    if group.kind == kinds.KIND_GPU:
        raise ConfigError(f"{who} has kind KIND_GPU but server does not support GPUs")
    if group.kind not in {kinds.KIND_CPU, kinds.KIND_MODEL}:
        raise ConfigError(f"{who} has unexpected kind KIND_AUTO", code=Code.INTERNAL)
    if group.gpus:
        raise ConfigError(f"{who} has kind {kinds.Kind.Name(group.kind)} but specifies one or more GPUs")
    if group.profile and message.platform != "tensorrt_plan":
        # The missing space is the reference's.
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
