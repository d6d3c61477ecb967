"""`--env-build`: what a server may do for a model that declares its environment by requirements."""

from __future__ import annotations

import enum

from naiad.config.server.flag_values import FlagValues

__all__ = ["EnvBuild", "parse_env_build"]


class EnvBuild(enum.Enum):
    """What is allowed; each value allows what those before it allow."""

    NEVER = "never"
    """Use environments that the store has."""
    LOCKED = "locked"
    """Install what a lock names."""
    ALLOWED = "allowed"
    """Resolve requirements without a lock, too."""


def parse_env_build(values: FlagValues, name: str) -> EnvBuild | None:
    """The value of the flag; None if it was not given."""
    return EnvBuild(values.text(name)) if values.has(name) else None
