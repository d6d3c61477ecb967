"""`--stub-hang-seconds` and a model's parameter HANG_SECONDS: after how long without progress a guest is restarted."""

from __future__ import annotations

from naiad.config.server.quantities import seconds_of_parameter

__all__ = ["PARAMETER", "hang_seconds"]

PARAMETER = "HANG_SECONDS"


def hang_seconds(model: str, parameter: str, default: float) -> float:
    """Seconds that requests of a model may go without progress before its guest is restarted; 0 for any.

    Args:
        model: The model's name.
        parameter: The model's parameter HANG_SECONDS; "" without one.
        default: The server's option, for models without the parameter.

    Raises:
        ConfigError: If the parameter is not such a number.
    """
    return seconds_of_parameter(model, PARAMETER, parameter, default, zero="no limit")
