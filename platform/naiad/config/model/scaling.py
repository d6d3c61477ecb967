"""A model's parameters `min_instances` and `max_instances`: how its number of instances follows its load."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import ConfigError
from naiad.protocol.numbers import decimal, integer

__all__ = ["IDLE", "MAX", "MIN", "WAIT", "ScalingPolicy", "scaling_policy", "with_count"]

MIN = "min_instances"
MAX = "max_instances"
WAIT = "scale_wait_ms"
IDLE = "scale_idle_seconds"
_DEFAULT_WAIT_MS = 100.0
_DEFAULT_IDLE_SECONDS = 60.0
_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """How many instances a model may have.

    Attributes:
        least: Instances that it always has.
        most: Instances that it never exceeds.
        wait: Seconds; if requests wait longer for a while, instances are added.
        idle: Seconds; an instance that was not needed for so long is removed.
    """

    least: int
    most: int
    wait: float
    idle: float


def scaling_policy(config: ModelConfig, *, is_native: bool = False) -> ScalingPolicy | None:
    """The policy that a model's parameters state; None if its number of instances is fixed.

    Args:
        config: The model's configuration.
        is_native: Whether the model runs on a native backend.

    Raises:
        ConfigError: If a parameter is invalid, or the instances of such a model cannot be changed.
    """
    given = {name: config.parameters.get(name, "").strip() for name in (MIN, MAX, WAIT, IDLE)}
    if not given[MAX]:
        if named := [name for name in (MIN, WAIT, IDLE) if given[name]]:
            raise ConfigError(
                f"parameter {named[0]} of model '{config.name}' has no effect without {MAX}: the number of its "
                "instances is fixed"
            )
        return None
    if is_native:
        raise ConfigError(
            f"parameters {MIN} and {MAX} of model '{config.name}' need a model in Python: the instances of a native "
            "backend cannot be added while it serves"
        )
    groups = config.instance_groups
    if len(groups) > 1 or any(len(group.gpus) > 1 for group in groups):
        raise ConfigError(
            f"parameters {MIN} and {MAX} of model '{config.name}' need one instance group on one device: its "
            "configuration has several"
        )
    if any(group.HasField("rate_limiter") or group.passive for group in config.message.instance_group):
        raise ConfigError(
            f"parameters {MIN} and {MAX} of model '{config.name}' cannot be used with rate_limiter or passive of its "
            "instance group"
        )
    count = groups[0].count if groups else 1
    most = _number(config.name, MAX, given[MAX])
    least = _number(config.name, MIN, given[MIN]) if given[MIN] else min(count, most)
    if most < least:
        raise ConfigError(f"parameter {MAX} of model '{config.name}' is {most}, less than {MIN}={least}")
    return ScalingPolicy(
        least=least,
        most=most,
        wait=_seconds(config.name, WAIT, given[WAIT], _DEFAULT_WAIT_MS) / 1000,
        idle=_seconds(config.name, IDLE, given[IDLE], _DEFAULT_IDLE_SECONDS),
    )


def with_count(message: pb.ModelConfig, count: int) -> pb.ModelConfig:
    """A copy of a model's configuration with *count* instances in its only group."""
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    copy.instance_group[0].count = count
    return copy


def _number(model: str, name: str, text: str) -> int:
    count = integer(text)
    if count is None or not 1 <= count <= _MOST:
        raise ConfigError(
            f"parameter {name} of model '{model}' is '{text}': give a number of instances from 1 to {_MOST}"
        )
    return count


def _seconds(model: str, name: str, text: str, default: float) -> float:
    if not text:
        return default
    value = decimal(text)
    if value is None or value <= 0:
        unit = "milliseconds" if name == WAIT else "seconds"
        raise ConfigError(f"parameter {name} of model '{model}' is '{text}': give a number of {unit} above 0")
    return value
