"""What a build comes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.environments.building.base import BaseInterpreter
from naiad.environments.building.installed import packages_in

__all__ = ["BuiltEnvironment", "built_in"]


@dataclass(frozen=True)
class BuiltEnvironment:
    """A prefix that was built.

    Attributes:
        prefix: Where it lies; it may be packed, or copied to another machine as it is.
        python: Its interpreter.
        version: Full version of that interpreter.
        base: The interpreter it was copied from, which is no longer needed; its own, where conda brought it.
        packages: Name and version of everything installed in it.
    """

    prefix: Path
    python: Path
    version: str
    base: Path
    packages: tuple[tuple[str, str], ...]


def built_in(prefix: Path, python: Path, base: BaseInterpreter) -> BuiltEnvironment:
    """What was built in a prefix, as it is now."""
    has_conda = base.prefix == prefix
    packages = tuple((one.name, one.version) for one in packages_in(prefix) if has_conda or one.source == "python")
    return BuiltEnvironment(prefix, python, base.version, base.executable, packages)
