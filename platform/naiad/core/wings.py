"""The packages beside `naiad` that a server does not need, and the one way in which it finds them.

The wheel has them all. An image that only serves may leave some out: delete the folder. What needs a package that is
not there says so (`MissingPackageError`); everything else works without it. `naiad` imports none of them by an import
statement (`tests/architecture`), so each can be read, tested and removed alone.

This table and not entry points of the distribution: the overview of commands and the message about a missing package
need the names of commands where the package is not there to declare them, a checkout that was never installed has no
entry points, and reading those of all installed distributions takes longer than everything else in `naiad --help`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from naiad.core.errors import MissingPackageError

__all__ = ["WINGS", "Wing", "command_modules", "load_from_wing", "wing_of_command"]


@dataclass(frozen=True, slots=True)
class Wing:
    """A package beside `naiad`.

    Attributes:
        package: Its name. Its module `commands`, if it has commands, has `FLAG_COMMANDS` and `click_commands`.
        commands: The sub-commands of `naiad` that it brings.
    """

    package: str
    commands: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


WINGS = (
    Wing("naiad_operations", ("doctor", "bench", "bundle", "push", "deploy", "ray", "top", "init")),
    Wing("naiad_building", ("add", "remove", "lock", "env")),
    Wing("naiad_llm"),
    Wing("naiad_embedded"),
)


def command_modules() -> Iterator[Any]:
    """The modules `commands` of the packages that are there."""
    for wing in WINGS:
        if wing.commands and wing.is_installed:
            yield import_module(f"{wing.package}.commands")


def wing_of_command(command: str) -> Wing | None:
    """The package that brings a sub-command of `naiad`; None for the server's own."""
    return next((wing for wing in WINGS if command in wing.commands), None)


def load_from_wing(place: str, purpose: str) -> Any:
    """Import what *place* names, as `package.module:name`; *purpose* is what cannot be done without it, for the error.

    Raises:
        MissingPackageError: If the package is not there, or another one that it needs.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        # One of these packages may need another one.
        if error.name not in {wing.package for wing in WINGS}:
            raise
        raise MissingPackageError(
            f"cannot {purpose}: this installation of naiad lacks its package '{error.name}'; install naiad as a whole: "
            "pip install --force-reinstall naiad"
        ) from None
