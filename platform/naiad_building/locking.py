"""`naiad env lock`: resolving a recipe for several versions of Python, and writing `requirements.lock`.

Each version is resolved by pip under that Python, because resolving for another version evaluates markers wrongly. For
a Python that is not installed, uv resolves: it can evaluate markers for other versions.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.environments.progress import LogReporter
from naiad_building.base_interpreter import find_base, inspect_base, installed_minors
from naiad_building.installers import (
    clean_environ,
    find_uv,
    pip_command,
    pip_settings,
    run_installer,
    uv_environ,
    uv_resolve_command,
)
from naiad_building.lockfiles import Pin, lock_text, read_head
from naiad_building.pip_program import find_pip
from naiad_building.recipe import LOCK_FILE, Recipe, read_recipe
from naiad_building.requirements import Requirements, declared_requirements

__all__ = ["lock", "locked_pythons"]

_UV_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def lock(
    recipe_dir: Path, *, pythons: tuple[str, ...] = (), progress: Callable[[str], None] = lambda _: None
) -> tuple[Path, dict[str, list[Pin]]]:
    """Write the lock of a recipe.

    Args:
        recipe_dir: Folder of the recipe.
        pythons: Versions to resolve for, `3.12`; by default every installed one that the recipe accepts. A version that
            is not installed needs uv.
        progress: Called with a line for each step.

    Returns:
        The lock file, and its pins for each version of Python.

    Raises:
        ConfigError: If the recipe is invalid or has nothing to lock.
        InterpreterNotFoundError: If the machine has no suitable interpreter.
        ExecutionEnvironmentError: If a resolution fails; an existing lock stays unchanged.
    """
    recipe = read_recipe(recipe_dir)
    requirements = declared_requirements(recipe)
    if recipe.lock is not None and recipe.lock.name != LOCK_FILE:
        raise ConfigError(
            f"{recipe.lock} is the lock of {recipe.folder} already; update it with the tool that wrote it"
        )
    if requirements is None:
        raise ConfigError(
            f"nothing to lock in {recipe.folder}: its env.toml names neither 'requirements' nor 'project'"
            + ("; pin conda packages with exact versions in its environment.yml" if recipe.conda else "")
        )
    installed = installed_minors(recipe.python) if not pythons else installed_minors(SpecifierSet(">=3.8"))
    chosen = {}
    for minor in sorted(pythons or installed, key=_numbers):
        progress(f"resolving for Python {minor}")
        chosen[minor] = _resolve(recipe, requirements, minor, progress, here=minor in installed)
    file = recipe.folder / LOCK_FILE
    unfinished = file.with_name(f".{LOCK_FILE}.{os.getpid()}")
    try:
        unfinished.write_text(lock_text(recipe, chosen), encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ExecutionEnvironmentError(f"cannot write {file}: {error.strerror or error}") from error
    return file, chosen


def locked_pythons(recipe_dir: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The versions of Python that a recipe's `requirements.lock` is for: those on this machine, and the others.

    Both are empty without such a lock.

    Raises:
        ConfigError: If the recipe or the lock is invalid.
    """
    recipe = read_recipe(recipe_dir)
    if recipe.lock is None or recipe.lock.name != LOCK_FILE:
        return (), ()
    locked = read_head(recipe.lock).pythons
    installed = installed_minors(SpecifierSet(">=3.8"))
    return (
        tuple(minor for minor in locked if minor in installed),
        tuple(minor for minor in locked if minor not in installed),
    )


def _resolve(
    recipe: Recipe, requirements: Requirements, minor: str, progress: Callable[[str], None], *, here: bool
) -> list[Pin]:
    """The packages to install into an empty environment: from pip, or from uv if the Python is not installed."""
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as folder:
        uv = None if here else find_uv()
        if uv is not None:
            compiled = Path(folder, "compiled.txt")
            settings = pip_settings()
            command = [*uv_resolve_command(uv, minor, settings), "-o", str(compiled)]
            environ = uv_environ(clean_environ(os.environ), settings)
            run_installer(recipe.name, requirements, command, environ, progress, LogReporter(), requirements_flag="")
            return _pins_of_uv(compiled.read_text(encoding="utf-8"))
        base = inspect_base(find_base(recipe, SpecifierSet(f"=={minor}.*")))
        report = Path(folder, "report.json")
        command = [
            *pip_command(find_pip(base), base.executable, "install"),
            # Wheels only: building a package runs its code, and gives a different file each time.
            *("--dry-run", "--ignore-installed", "--only-binary=:all:", "--progress-bar=off"),
            *("--report", str(report)),
        ]
        # Debian's Python forbids installing into it. A dry run installs nothing.
        environ = {**clean_environ(os.environ), "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        run_installer(recipe.name, requirements, command, environ, progress, LogReporter())
        return [_pin(recipe, item) for item in json.loads(report.read_text(encoding="utf-8"))["install"]]


def _pins_of_uv(text: str) -> list[Pin]:
    """Parse the output of uv: each package with the digests of its files for all platforms."""
    return [Pin(name, version, tuple(_DIGEST.findall(rest))) for name, version, rest in _UV_PIN.findall(text)]


def _pin(recipe: Recipe, item: dict[str, dict[str, dict[str, dict[str, str]]]]) -> Pin:
    metadata = item["metadata"]
    name, version = str(metadata["name"]), str(metadata["version"])
    digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise ConfigError(
            f"'{name}' of '{recipe.name}' comes from a folder or a repository and has no digest; build a wheel of it"
        )
    return Pin(name, version, (digest,))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
