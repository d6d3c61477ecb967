"""Building an environment from a recipe's `environment.yml`, with conda packages installed by py-rattler.

conda itself is neither needed nor installed into the environment.
"""

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

__all__ = ["EnvironmentYml", "build_conda", "install_conda", "python_spec", "read_environment_yml"]

_KEYS = ("name", "prefix", "channels", "dependencies", "variables", "platforms")
_DEFAULT_CHANNELS = ("conda-forge",)
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")


@dataclass(frozen=True, slots=True)
class EnvironmentYml:
    """The content of an `environment.yml`.

    Attributes:
        channels: Channels, highest priority first: names or URLs.
        specs: Conda packages, as match specs.
        requirements: Requirements for pip.
        variables: Environment variables for guests.
    """

    channels: tuple[str, ...]
    specs: tuple[str, ...]
    requirements: tuple[str, ...]
    variables: dict[str, str]


def read_environment_yml(file: Path) -> EnvironmentYml:
    """Read an `environment.yml`.

    Raises:
        ConfigError: If it cannot be read or is invalid.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"reading {file} needs naiad's extra 'conda': `pip install naiad[conda]`") from None
    try:
        table = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{file} is not a valid environment.yml: it has no 'dependencies'")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise ConfigError(f"{file}: unknown key '{unknown[0]}'; known keys are {', '.join(_KEYS)}")
    return _EnvironmentYmlReader(file, table).read()


class _EnvironmentYmlReader:
    """Converts the table of one file."""

    def __init__(self, file: Path, table: dict[str, Any]) -> None:
        self._file = file
        self._table = table

    def read(self) -> EnvironmentYml:
        dependencies = self._list("dependencies")
        specs = tuple(spec for spec in dependencies if isinstance(spec, str))
        pip = [line for part in dependencies if isinstance(part, dict) for line in self._pip_lines(part)]
        variables = self._table.get("variables") or {}
        if not isinstance(variables, dict):
            raise self._error("'variables' must be names with values")
        channels = tuple(map(self._channel, self._list("channels"))) or _DEFAULT_CHANNELS
        return EnvironmentYml(
            # "nodefaults" excludes conda's default channels, which are never used here.
            channels=tuple(channel for channel in channels if channel != "nodefaults"),
            # pip runs from outside the environment, so it need not be installed there.
            specs=tuple(spec for spec in specs if spec != "pip"),
            requirements=tuple(pip),
            variables={str(name): str(value) for name, value in variables.items()},
        )

    def _list(self, key: str) -> list[Any]:
        values = self._table.get(key) or []
        if not isinstance(values, list):
            raise self._error(f"'{key}' must be a list")
        return values

    def _channel(self, channel: object) -> str:
        text = str(channel)
        # Paths are relative to the file, so that a recipe can contain a channel.
        return (self._file.parent / text).resolve().as_uri() if text.startswith((".", "/")) else text

    def _pip_lines(self, part: dict[Any, Any]) -> list[str]:
        if list(part) != ["pip"] or not isinstance(part["pip"], list):
            raise self._error("'dependencies' has a part that is neither a package nor a list for 'pip'")
        return [self._pip_line(str(line)) for line in part["pip"]]

    def _pip_line(self, line: str) -> str:
        option, _, path = line.partition(" ")
        return f"{option} {(self._file.parent / path.strip()).resolve()}" if option in _INCLUDES else line

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"{self._file} is not a valid environment.yml: {what}")


def install_conda(
    recipe: Recipe, file: EnvironmentYml, prefix: Path, *, offline: bool, progress: Callable[[str], None]
) -> None:
    """Solve the requested packages, and install them into a new folder.

    Raises:
        ConfigError: If py-rattler is not installed.
        ExecutionEnvironmentError: If a package does not exist or cannot be downloaded.
    """
    try:
        import rattler
    except ImportError:
        raise ConfigError(
            f"building '{recipe.name}' from {recipe.conda} needs naiad's extra 'conda': `pip install naiad[conda]`"
        ) from None
    if offline:
        _require_local_channels(recipe, file)

    async def solve_and_install() -> None:
        progress(f"solving for {len(file.specs)} conda packages from {', '.join(file.channels)}")
        records = await rattler.solve(
            list(file.channels),
            list(file.specs),
            platforms=[rattler.Subdir.current(), "noarch"],
            virtual_packages=list(rattler.VirtualPackage.detect()),
        )
        progress(f"installing {len(records)} conda packages")
        await rattler.install(
            records,
            prefix,
            # conda-pack reads files from this cache, so it must exist as long as the environment.
            cache_dir=find_store("", {}).path.with_name("conda-packages"),
            show_progress=sys.stderr.isatty(),
        )

    try:
        asyncio.run(solve_and_install())
    except Exception as error:  # rattler's errors have no common base class
        raise ExecutionEnvironmentError(
            f"cannot install conda packages for '{recipe.name}', named in {recipe.conda}: {str(error).strip()}"
        ) from error


def python_spec(versions: str) -> str:
    """The match spec for a set of versions of Python."""
    return f"python {versions}"


def _require_local_channels(recipe: Recipe, file: EnvironmentYml) -> None:
    for channel in file.channels:
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
    """Build in the empty folder *prefix*; returns the interpreter of the environment and its parts.

    Raises:
        ConfigError: If `environment.yml` is invalid, or the extra `conda` is not installed.
        ExecutionEnvironmentError: If a package cannot be installed.
        OSError: If a file cannot be copied.
    """
    assert recipe.conda is not None
    file = read_environment_yml(recipe.conda)
    install_conda(recipe, _with_python(recipe, file, python), prefix, offline=options.offline, progress=progress)
    # The history marks a complete environment, so it is restored last: a killed build must not look complete.
    history = prefix / "conda-meta" / "history"
    text = history.read_bytes() if history.is_file() else b""
    history.unlink(missing_ok=True)
    executable = find_interpreter_in(prefix)
    if executable is None:
        raise ExecutionEnvironmentError(
            f"cannot build '{recipe.name}': {recipe.conda} names no Python; add 'python' to its dependencies"
        )
    base = inspect_base(executable)
    if file.requirements:
        requirements = Requirements("\n".join(file.requirements) + "\n", recipe.conda, complete=False, hashed=False)
        progress(f"installing {len(file.requirements)} requirements with pip")
        install(recipe.name, requirements, base, executable, options, progress, reporter)
    progress("compiling")
    compile_environment(executable, prefix, base.cache_tag)
    copy_recipe(replace(recipe, variables={**file.variables, **recipe.variables}), prefix)
    history.write_bytes(text)
    return executable, base


def _with_python(recipe: Recipe, file: EnvironmentYml, python: str | None) -> EnvironmentYml:
    """Add the versions of Python that the recipe and the caller require."""
    if python is not None and "/" in python:
        raise ConfigError(f"'{recipe.name}' gets its Python from conda: give a version instead of {python}")
    versions = ",".join(filter(None, (str(recipe.python), f"{python}.*" if python else "")))
    return replace(file, specs=(*file.specs, python_spec(versions))) if versions else file
