"""Models that are loaded by their first request: the parameters `demand` and `idle_seconds` of a model."""

from __future__ import annotations

from naiad.config.server.quantities import seconds_of_parameter
from naiad.core.errors import ConfigError

__all__ = ["IDLE_PARAMETER", "PARAMETER", "demand_idle_seconds", "is_on_demand"]

PARAMETER = "demand"
IDLE_PARAMETER = "idle_seconds"
_VALUES = {"true": True, "1": True, "false": False, "0": False, "pinned": False}


def is_on_demand(model: str, parameter: str, default: bool) -> bool:  # noqa: FBT001 - the server's option
    """Whether a model is loaded by its first request, and may be unloaded afterwards.

    Args:
        model: The model's name.
        parameter: The model's parameter `demand`: true, or pinned (the same as false); "" without one.
        default: Whether the server has --model-control-mode=demand, for models without the parameter.

    Raises:
        ConfigError: If the parameter has another value.
    """
    text = parameter.strip().lower()
    if not text:
        return default
    value = _VALUES.get(text)
    if value is None:
        raise ConfigError(
            f"parameter {PARAMETER} of model '{model}' is '{parameter}': give true (its first request loads it) or "
            "pinned (it is loaded at the start and stays)"
        )
    return value


def demand_idle_seconds(model: str, parameter: str, default: float) -> float:
    """Seconds without requests after which a model that was loaded on demand is unloaded; 0 for never.

    Args:
        model: The model's name.
        parameter: The model's parameter `idle_seconds`; "" without one.
        default: The server's option, for models without the parameter.

    Raises:
        ConfigError: If the parameter is not such a number.
    """
    return seconds_of_parameter(model, IDLE_PARAMETER, parameter, default, zero="never")
