"""A model's parameters `min_instances` and `max_instances`: how its number of instances follows its load."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.given_parameters import GivenParameters
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


def parse_scaling(given: GivenParameters) -> ScalingPolicy | None:
    """The policy that a model's parameters state; None if its number of instances is fixed."""
    message, model = given.message, given.message.name
    if not given.text(MAX):
        if named := [name for name in (MIN, SCALE_WAIT, SCALE_IDLE) if given.text(name)]:
            raise given.parameter_error(named[0], f"has no effect without {MAX}: the number of its instances is fixed")
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
    most = _instances(given, MAX, count)
    least = _instances(given, MIN, min(count, most))
    if most < least:
        raise given.parameter_error(MAX, f"is {most}, less than {MIN}={least}")
    return ScalingPolicy(
        least=least,
        most=most,
        wait=_time(given, SCALE_WAIT, "milliseconds", _DEFAULT_WAIT_MS) / 1000,
        idle=_time(given, SCALE_IDLE, "seconds", _DEFAULT_IDLE_SECONDS),
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
    copy = deepcopy(message)
    copy.instance_group[0].count = count
    return copy


def _instances(given: GivenParameters, name: str, default: int) -> int:
    def convert(text: str) -> int | None:
        count = integer(text)
        return count if count is not None and 1 <= count <= _MOST else None

    return given.converted(name, convert, f"a number of instances from 1 to {_MOST}") or default


def _time(given: GivenParameters, name: str, unit: str, default: float) -> float:
    def convert(text: str) -> float | None:
        value = decimal(text)
        return value if value is not None and value > 0 else None

    return given.converted(name, convert, f"a number of {unit} above 0") or default
