"""Makes defaults explicit in a configuration, so that `/config` shows the effective values.

It runs after a configuration is read, and again after a model has completed it. The functions change the message in
place and are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.config.model import model_config_pb2 as pb

_PYTHON = "python"
DEFAULT_SEQUENCE_IDLE_MICROSECONDS = 1_000_000


def normalise(message: pb.ModelConfig) -> None:
    """Make defaults explicit: version policy, preferred batch sizes, idle time, pinned memory."""
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    if message.HasField("dynamic_batching"):
        _prefer_whole_batches(message, message.dynamic_batching)
    if message.HasField("sequence_batching"):
        _normalise_sequences(message)
    if not message.HasField("ensemble_scheduling"):
        _default_to_pinned_memory(message.optimization)


def normalise_instance_groups(message: pb.ModelConfig, gpu_count: Callable[[], int] = lambda: 0) -> None:
    """Give every instance group a name, a kind, a count and devices. A model has at least one group, an ensemble none.

    As in the reference, KIND_AUTO means all GPUs where there are some, and so does the default group of backend
    `python`. That of other backends means the CPU: whether a native library can use a GPU is known after it is loaded.

    The default group has the name of the model, an unnamed configured one `<model>_<index>`. Their instances are called
    `m_0` and `m_0_0`, as clients and logs of the reference expect.
    """
    if message.HasField("ensemble_scheduling"):
        return
    if not message.instance_group:
        default = message.instance_group.add(name=message.name)
        if message.backend != _PYTHON:
            default.kind = pb.ModelInstanceGroup.KIND_CPU
    for index, group in enumerate(message.instance_group):
        if not group.name:
            group.name = f"{message.name}_{index}"
        kinds = pb.ModelInstanceGroup
        if group.kind == kinds.KIND_AUTO:
            group.kind = kinds.KIND_GPU if gpu_count() else kinds.KIND_CPU
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(range(gpu_count()))
        group.count = max(group.count, 1)


def _prefer_whole_batches(
    message: pb.ModelConfig, batcher: pb.ModelDynamicBatching | pb.ModelSequenceBatching.StrategyOldest
) -> None:
    if not batcher.preferred_batch_size and message.max_batch_size > 0:
        batcher.preferred_batch_size.append(message.max_batch_size)


def _normalise_sequences(message: pb.ModelConfig) -> None:
    sequences = message.sequence_batching
    if sequences.max_sequence_idle_microseconds == 0:
        sequences.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_MICROSECONDS
    if sequences.HasField("oldest"):
        _prefer_whole_batches(message, sequences.oldest)


def _default_to_pinned_memory(optimization: pb.ModelOptimizationPolicy) -> None:
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True
