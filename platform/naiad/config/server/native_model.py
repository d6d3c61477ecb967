"""`--native-shared-model` and the parameter native_shared_model: all instances of a native model in one guest."""

from __future__ import annotations

from naiad.core.errors import ConfigError

__all__ = ["PARAMETER", "is_model_shared"]

PARAMETER = "native_shared_model"
_VALUES = {"true": True, "1": True, "false": False, "0": False}


def is_model_shared(model: str, parameter: str, default: bool) -> bool:  # noqa: FBT001 - the server's option
    """Whether the instances of a native backend's model share one process and one model object.

    Args:
        model: The model's name.
        parameter: The model's parameter native_shared_model; "" without one.
        default: The server's option, for models without the parameter.

    Raises:
        ConfigError: If the parameter is neither true nor false.
    """
    if not parameter.strip():
        return default
    value = _VALUES.get(parameter.strip().lower())
    if value is None:
        raise ConfigError(f"parameter {PARAMETER} of model '{model}' is '{parameter}': give true or false")
    return value
