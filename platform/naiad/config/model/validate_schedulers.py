"""Dynamic and sequence batching that contradict themselves, with the reference's texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from naiad.config.model import model_config_pb2 as pb
from naiad.errors import ConfigError

__all__ = ["validate_dynamic_batching", "validate_sequence_batching"]

_Control = pb.ModelSequenceBatching.Control

_CORRELATION_ID_TYPES = frozenset({pb.TYPE_UINT64, pb.TYPE_INT64, pb.TYPE_UINT32, pb.TYPE_INT32, pb.TYPE_STRING})


def validate_dynamic_batching(message: pb.ModelConfig) -> None:
    """Check preferred sizes, priority levels and queue policies.

    Raises:
        ConfigError: At the first contradiction.
    """
    batching = message.dynamic_batching
    _validate_sizes(batching.preferred_batch_size, "dynamic batching preferred size", message)
    if batching.priority_levels:
        _validate_priorities(batching, message.name)
    if batching.preserve_ordering:
        _validate_ordering(batching, message.name)


def validate_sequence_batching(message: pb.ModelConfig) -> None:
    """Check control tensors and strategy.

    Raises:
        ConfigError: At the first contradiction.
    """
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
    """Yield the control of a kind, if there is one; there may not be two."""
    controls = [control for tensor in batching.control_input for control in tensor.control if control.kind == kind]
    yield from controls[:1]
    if len(controls) > 1:
        raise ConfigError(f"sequence batching specifies multiple {_Control.Kind.Name(kind)} tensors for {model}")


def _validate_flag(control: pb.ModelSequenceBatching.Control, model: str) -> None:
    """START, END and READY need the two values of exactly one type."""
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
    """How many values are given for each type that has any."""
    counts = {
        "int32_false_true": len(control.int32_false_true),
        "fp32_false_true": len(control.fp32_false_true),
        "bool_false_true": len(control.bool_false_true),
    }
    return {name: count for name, count in counts.items() if count}
