"""Reading conda's `environment.yml`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from naiad.config.server.store_location import find_store
from naiad.environments.building.base_interpreter import BaseInterpreter, inspect_base
from naiad.environments.building.installers import InstallOptions, install
from naiad.environments.building.recipe import Recipe, copy_recipe
from naiad.environments.building.requirements import Requirements
from naiad.environments.bytecode import compile_environment
from naiad.environments.progress import ProgressReporter
from naiad.errors import ConfigError, ExecutionEnvironmentError
from naiad.interpreters.prefix import find_interpreter_in

__all__ = ["CondaEnvironmentFile", "build_conda", "install_conda", "python_spec", "read_environment_yml"]

_KEYS = ("name", "prefix", "channels", "dependencies", "variables", "platforms")
_DEFAULT_CHANNELS = ("conda-forge",)
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")


@dataclass(frozen=True, slots=True)
class CondaEnvironmentFile:
    """What an `environment.yml` asks for.

    Attributes:
        channels: Where packages come from, the dearest first: names, URLs, or folders as URLs.
        specs: Conda packages.
        requirements: Lines for pip.
        variables: Of the environment.
    """

    channels: tuple[str, ...]
    specs: tuple[str, ...]
    requirements: tuple[str, ...]
    variables: dict[str, str]


def read_environment_yml(file: Path) -> CondaEnvironmentFile:
    """Read a file.

    Raises:
        ConfigError: It cannot be read, or is not as conda wants it.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"reading {file} needs conda's part of naiad: `pip install naiad[conda]`") from None
    try:
        table = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{file} is not as conda wants it: no 'dependencies' in it")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise ConfigError(f"{file}: key '{unknown[0]}' is not known; known keys are {', '.join(_KEYS)}")
    return _Reader(file, table).wish()


class _Reader:
    """Takes the parts of one file out of its table."""

    def __init__(self, file: Path, table: dict[str, Any]) -> None:
        self._file = file
        self._table = table

    def wish(self) -> CondaEnvironmentFile:
        dependencies = self._list("dependencies")
        specs = tuple(spec for spec in dependencies if isinstance(spec, str))
        pip = [line for part in dependencies if isinstance(part, dict) for line in self._pip_lines(part)]
        variables = self._table.get("variables") or {}
        if not isinstance(variables, dict):
            raise self._wrong("'variables' must be names with values")
        channels = tuple(map(self._channel, self._list("channels"))) or _DEFAULT_CHANNELS
        return CondaEnvironmentFile(
            # conda's word for "and no others", which is so here anyway.
            channels=tuple(channel for channel in channels if channel != "nodefaults"),
            # pip is asked for where there are lines for it; ours does not live in the environment.
            specs=tuple(spec for spec in specs if spec != "pip"),
            requirements=tuple(pip),
            variables={str(name): str(value) for name, value in variables.items()},
        )

    def _list(self, key: str) -> list[Any]:
        values = self._table.get(key) or []
        if not isinstance(values, list):
            raise self._wrong(f"'{key}' must be a list")
        return values

    def _channel(self, channel: object) -> str:
        text = str(channel)
        # A path counts from the file, so that a channel can travel with its recipe.
        return (self._file.parent / text).resolve().as_uri() if text.startswith((".", "/")) else text

    def _pip_lines(self, part: dict[Any, Any]) -> list[str]:
        if list(part) != ["pip"] or not isinstance(part["pip"], list):
            raise self._wrong("'dependencies' has a part that is neither a package nor a list for 'pip'")
        return [self._pip_line(str(line)) for line in part["pip"]]

    def _pip_line(self, line: str) -> str:
        option, _, path = line.partition(" ")
        return f"{option} {(self._file.parent / path.strip()).resolve()}" if option in _INCLUDES else line

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._file} is not as conda wants it: {what}")


def install_conda(
    recipe: Recipe, wish: CondaEnvironmentFile, prefix: Path, *, offline: bool, progress: Callable[[str], None]
) -> None:
    """Solve what is wished for, and install it into a new folder.

    Raises:
        ConfigError: py-rattler is not installed, or a channel cannot be used.
        ExecutionEnvironmentError: There is no such package, or it could not be fetched.
    """
    try:
        import rattler
    except ImportError:
        raise ConfigError(
            f"building '{recipe.name}' from {recipe.conda} needs conda's part of naiad: `pip install naiad[conda]`"
        ) from None
    if offline:
        _require_here(recipe, wish)

    async def solve_and_install() -> None:
        progress(f"solving for {len(wish.specs)} conda packages from {', '.join(wish.channels)}")
        records = await rattler.solve(
            list(wish.channels),
            list(wish.specs),
            platforms=[rattler.Subdir.current(), "noarch"],
            virtual_packages=list(rattler.VirtualPackage.detect()),
        )
        progress(f"installing {len(records)} conda packages")
        await rattler.install(
            records,
            prefix,
            # conda-pack takes files from this cache, so it must last as long as what is built.
            cache_dir=find_store("", {}).path.with_name("conda-packages"),
            show_progress=sys.stderr.isatty(),
        )

    try:
        asyncio.run(solve_and_install())
    except Exception as error:  # rattler's errors have no class in common
        raise ExecutionEnvironmentError(
            f"cannot install conda packages for '{recipe.name}', named in {recipe.conda}: {str(error).strip()}"
        ) from error


def python_spec(versions: str) -> str:
    """A package of conda for a set of versions of Python."""
    return f"python {versions}"


def _require_here(recipe: Recipe, wish: CondaEnvironmentFile) -> None:
    for channel in wish.channels:
        if not channel.startswith("file:"):
            raise ExecutionEnvironmentError(
                f"cannot build '{recipe.name}' offline: {recipe.conda} names the channel {channel}, which is not on "
                "this machine; name a folder with a channel"
            )


def build_conda(
    recipe: Recipe,
    prefix: Path,
    *,
    python: str | None,
    options: InstallOptions,
    progress: Callable[[str], None],
    reporter: ProgressReporter,
) -> tuple[Path, BaseInterpreter]:
    """Build in the empty folder `prefix`.

    Raises:
        ConfigError: `environment.yml` is wrong, or naiad was installed without what this needs.
        ExecutionEnvironmentError: A package is not there, or could not be installed.
        OSError: A file cannot be copied.
    """
    assert recipe.conda is not None
    wish = read_environment_yml(recipe.conda)
    install_conda(recipe, _with_python(recipe, wish, python), prefix, offline=options.offline, progress=progress)
    # It comes back at the end: a build that was killed midway must not look like an environment.
    history = prefix / "conda-meta" / "history"
    text = history.read_bytes() if history.is_file() else b""
    history.unlink(missing_ok=True)
    executable = find_interpreter_in(prefix)
    if executable is None:
        raise ExecutionEnvironmentError(
            f"cannot build '{recipe.name}': {recipe.conda} names no Python; add 'python' to its dependencies"
        )
    base = inspect_base(executable)
    if wish.requirements:
        wanted = Requirements("\n".join(wish.requirements) + "\n", recipe.conda, complete=False, hashed=False)
        progress(f"installing {len(wish.requirements)} requirements with pip")
        install(recipe.name, wanted, base, executable, options, progress, reporter)
    progress("compiling")
    compile_environment(executable, prefix, base.cache_tag)
    copy_recipe(replace(recipe, variables={**wish.variables, **recipe.variables}), prefix)
    history.write_bytes(text)
    return executable, base


def _with_python(recipe: Recipe, wish: CondaEnvironmentFile, python: str | None) -> CondaEnvironmentFile:
    """The wish with the recipe's own versions of Python, and the one that is asked for."""
    if python is not None and "/" in python:
        raise ConfigError(f"'{recipe.name}' gets its Python from conda: give a version instead of {python}")
    asked = ",".join(filter(None, (str(recipe.python), f"{python}.*" if python else "")))
    return replace(wish, specs=(*wish.specs, python_spec(asked))) if asked else wish
