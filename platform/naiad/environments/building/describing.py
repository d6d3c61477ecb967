"""Writing the manifest of an environment that is being packed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from naiad.environments.archives.manifest import Manifest, host_platform
from naiad.environments.building.installed import packages_in
from naiad.environments.building.members import Packed
from naiad.environments.building.recipe_files import RECIPE_FOLDER
from naiad.environments.building.symbols import newest_glibc
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.probe import Interpreter, ask
from naiad.interpreters.versions import version_text

__all__ = ["describe"]


def describe(prefix: Path, members: Sequence[Packed], *, made_from: str) -> Manifest:
    """The manifest for these members, which are what is packed of `prefix`.

    Raises:
        OSError: A file cannot be read.
    """
    asked = _ask(prefix)
    recipe = _recipe(prefix)
    return Manifest(
        name="" if recipe is None else recipe.name,
        made_from=made_from,
        platform=host_platform(),
        glibc=newest_glibc(_sources(members)),
        python=version_text(asked.version) if asked else "",
        abi=asked.abi if asked else "",
        packages=packages_in(prefix),
        files=len(members),
        size=sum(member.size for member in members),
        recipe=_digests(recipe),
    )


def _ask(prefix: Path) -> Interpreter | None:
    """What its interpreter is; None for an environment without one, which conda allows."""
    try:
        return ask(prefix / "bin" / "python")
    except ExecutionEnvironmentError:
        return None


def _sources(members: Sequence[Packed]) -> Iterator[Path]:
    return (member.source for member in members if member.source is not None)


def _recipe(prefix: Path) -> Path | None:
    """The copy of the recipe, in a folder of the recipe's name."""
    return next(iter(sorted((prefix / RECIPE_FOLDER).glob("*"))), None)


def _digests(recipe: Path | None) -> dict[str, str]:
    files = sorted(path for path in recipe.rglob("*") if path.is_file()) if recipe is not None else ()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
