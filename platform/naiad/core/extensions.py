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


@dataclass(frozen=True, slots=True)
class Extension:
    """A package beside `naiad`."""

    package: str  # Its name. Its module `commands`, if it has commands, has `FLAG_COMMANDS` and `click_commands`.
    commands: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


EXTENSIONS = (
    Extension("naiad_operations", ("doctor", "bench", "bundle", "push", "deploy", "ray", "top", "init")),
    Extension("naiad_building", ("add", "remove", "lock", "env")),
    Extension("naiad_llm"),
    Extension("naiad_embedded"),
)


def command_modules() -> Iterator[Any]:
    """The modules `commands` of the packages that are there."""
    for extension in EXTENSIONS:
        if extension.commands and extension.is_installed:
            yield import_module(f"{extension.package}.commands")


def extension_of_command(command: str) -> Extension | None:
    """The package that brings a sub-command of `naiad`; None for the server's own."""
    return next((extension for extension in EXTENSIONS if command in extension.commands), None)


def load_from_extension(place: str, purpose: str) -> Any:
    """Import what *place* names, as `package.module:name`; MissingPackageError, with *purpose*, without its package."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        # One of these packages may need another one.
        if error.name not in {extension.package for extension in EXTENSIONS}:
            raise
        raise MissingPackageError(
            f"cannot {purpose}: this installation of naiad lacks its package '{error.name}'; install naiad as a whole: "
            "pip install --force-reinstall naiad"
        ) from None
