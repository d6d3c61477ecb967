"""Reading conda's `environment.yml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.errors import ConfigError

__all__ = ["CondaWish", "read_environment_yml"]

_KEYS = ("name", "prefix", "channels", "dependencies", "variables", "platforms")
_DEFAULT_CHANNELS = ("conda-forge",)
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")


@dataclass(frozen=True, slots=True)
class CondaWish:
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


def read_environment_yml(file: Path) -> CondaWish:
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

    def wish(self) -> CondaWish:
        dependencies = self._list("dependencies")
        specs = tuple(spec for spec in dependencies if isinstance(spec, str))
        pip = [line for part in dependencies if isinstance(part, dict) for line in self._pip_lines(part)]
        variables = self._table.get("variables") or {}
        if not isinstance(variables, dict):
            raise self._wrong("'variables' must be names with values")
        channels = tuple(map(self._channel, self._list("channels"))) or _DEFAULT_CHANNELS
        return CondaWish(
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
