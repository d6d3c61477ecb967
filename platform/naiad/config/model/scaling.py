"""A model's parameters `min_instances` and `max_instances`: how its number of instances follows its load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import ParameterError
from naiad.protocol.numbers import decimal, integer

MIN = "min_instances"
MAX = "max_instances"
SCALE_WAIT = "scale_wait_ms"
SCALE_IDLE = "scale_idle_seconds"
_DEFAULT_WAIT_MS = 100.0
_DEFAULT_IDLE_SECONDS = 60.0
_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """How many instances a model may have."""

    least: int
    most: int
    wait: float  # seconds; if requests wait longer for a while, instances are added
    idle: float  # seconds; an instance that was not needed for so long is removed


def parse_scaling(message: pb.ModelConfig, given: Mapping[str, str]) -> ScalingPolicy | None:
    """The policy that a model's parameters state; None if its number of instances is fixed."""
    model = message.name
    texts = {name: given.get(name, "").strip() for name in (MIN, MAX, SCALE_WAIT, SCALE_IDLE)}
    if not texts[MAX]:
        if named := [name for name in (MIN, SCALE_WAIT, SCALE_IDLE) if texts[name]]:
            raise ParameterError(
                f"parameter {named[0]} of model '{model}' has no effect without {MAX}: the number of its instances is "
                "fixed",
                parameter=named[0],
            )
        return None
    groups = message.instance_group
    if len(groups) > 1 or any(len(group.gpus) > 1 for group in groups):
        raise ParameterError(
            f"parameters {MIN} and {MAX} of model '{model}' need one instance group on one device: its "
            "configuration has several",
            parameter=MAX,
        )
    if any(group.HasField("rate_limiter") or group.passive for group in groups):
        raise ParameterError(
            f"parameters {MIN} and {MAX} of model '{model}' cannot be used with rate_limiter or passive of its "
            "instance group",
            parameter=MAX,
        )
    count = groups[0].count if groups else 1
    most = _number(model, MAX, texts[MAX])
    least = _number(model, MIN, texts[MIN]) if texts[MIN] else min(count, most)
    if most < least:
        raise ParameterError(f"parameter {MAX} of model '{model}' is {most}, less than {MIN}={least}", parameter=MAX)
    return ScalingPolicy(
        least=least,
        most=most,
        wait=_seconds(model, SCALE_WAIT, texts[SCALE_WAIT], _DEFAULT_WAIT_MS) / 1000,
        idle=_seconds(model, SCALE_IDLE, texts[SCALE_IDLE], _DEFAULT_IDLE_SECONDS),
    )


def reject_native_scaling(model: str) -> ParameterError:
    """The error for a native model with such a policy: what runs a model is known only once it has been resolved."""
    return ParameterError(
        f"parameters {MIN} and {MAX} of model '{model}' need a model in Python: the instances of a native "
        "backend cannot be added while it serves",
        parameter=MAX,
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
        raise ParameterError(
            f"parameter {name} of model '{model}' is '{text}': give a number of instances from 1 to {_MOST}",
            parameter=name,
        )
    return count


def _seconds(model: str, name: str, text: str, default: float) -> float:
    if not text:
        return default
    value = decimal(text)
    if value is None or value <= 0:
        unit = "milliseconds" if name == SCALE_WAIT else "seconds"
        raise ParameterError(
            f"parameter {name} of model '{model}' is '{text}': give a number of {unit} above 0", parameter=name
        )
    return value
