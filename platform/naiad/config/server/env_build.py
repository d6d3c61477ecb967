"""`--env-build`: what a server may do for a model that declares its environment by requirements."""

from __future__ import annotations

import enum

from naiad.config.server.flag_values import FlagValues


class EnvBuild(enum.Enum):
    """What is allowed; each value allows what those before it allow."""

    NEVER = "never"  # use environments that the store has
    LOCKED = "locked"  # install what a lock names
    ALLOWED = "allowed"  # resolve requirements without a lock, too


def parse_env_build(values: FlagValues, name: str) -> EnvBuild | None:
    """The value of the flag; None if it was not given."""
    return EnvBuild(values.text(name)) if values.has(name) else None
