"""Conda packages, solved and installed by py-rattler, and the file `environment.yml`.

conda itself is neither needed nor installed into the environment.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.core.extras import install_command
from naiad.core.real_paths import real_path

if TYPE_CHECKING:
    from rattler import RepoDataRecord

__all__ = [
    "EnvironmentYml",
    "install_packages",
    "python_spec",
    "read_environment_yml",
    "require_local",
    "require_rattler",
    "solve_packages",
]

_KEYS = ("name", "prefix", "channels", "dependencies", "variables", "platforms")
_DEFAULT_CHANNELS = ("conda-forge",)
_FULL_VERSION_DOTS = 2
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")


@dataclass(frozen=True, slots=True)
class EnvironmentYml:
    """The content of an `environment.yml`; channels are names or URLs, the one of highest priority first."""

    channels: tuple[str, ...]
    specs: tuple[str, ...]
    requirements: tuple[str, ...]
    variables: dict[str, str]


def read_environment_yml(file: Path) -> EnvironmentYml:
    """Read an `environment.yml`."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"reading {file} needs packages that naiad lacks: `{install_command('conda')}`") from None
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


def _channel_uri(channel: str, file: Path) -> str:
    """A channel as rattler takes it. Paths are relative to the file that names them, which may be beside a channel."""
    return real_path(file.parent / channel).as_uri() if channel.startswith((".", "/")) else channel


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
        channels = tuple(_channel_uri(str(channel), self._file) for channel in self._list("channels"))
        channels = channels or _DEFAULT_CHANNELS
        return EnvironmentYml(
            # "nodefaults" excludes conda's default channels, which are never used here.
            channels=tuple(channel for channel in channels if channel != "nodefaults"),
            # uv installs from outside the environment, so pip need not be in it.
            specs=tuple(spec for spec in specs if spec != "pip"),
            requirements=tuple(pip),
            variables={str(name): str(value) for name, value in variables.items()},
        )

    def _list(self, key: str) -> list[Any]:
        values = self._table.get(key) or []
        if not isinstance(values, list):
            raise self._error(f"'{key}' must be a list")
        return values

    def _pip_lines(self, part: dict[Any, Any]) -> list[str]:
        if list(part) != ["pip"] or not isinstance(part["pip"], list):
            raise self._error("'dependencies' has a part that is neither a package nor a list for 'pip'")
        return [self._pip_line(str(line)) for line in part["pip"]]

    def _pip_line(self, line: str) -> str:
        option, _, path = line.partition(" ")
        return f"{option} {real_path(self._file.parent / path.strip())}" if option in _INCLUDES else line

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"{self._file} is not a valid environment.yml: {what}")


def require_rattler(file: Path) -> None:
    """Check that py-rattler is installed."""
    if importlib.util.find_spec("rattler") is None:
        raise ConfigError(f"using {file} needs packages that naiad lacks: `{install_command('conda')}`")


def solve_packages(channels: Sequence[str], specs: Sequence[str], file: Path) -> list[RepoDataRecord]:
    """The conda packages that satisfy *specs*, with those that they depend on; *file* names them, for errors."""
    import rattler

    async def solve() -> list[RepoDataRecord]:
        return await rattler.solve(
            list(channels),
            list(specs),
            platforms=[rattler.Subdir.current(), "noarch"],
            virtual_packages=list(rattler.VirtualPackage.detect()),
            # By default it neither tries again nor logs in.
            gateway=rattler.Gateway(client=rattler.Client.default_client()),
        )

    with _errors(file):
        return asyncio.run(solve())


def install_packages(
    records: Sequence[RepoDataRecord], prefix: Path, *, cache: Path, file: Path, final: Path | None = None
) -> None:
    """Install conda packages into a new folder.

    Args:
        cache: Unpacked packages, whose files are shared by hard links. conda-pack reads files from it.
        final: The path to which the folder will be moved; None if it stays.
    """
    import rattler

    async def install() -> None:
        await rattler.install(
            list(records),
            prefix,
            cache_dir=cache,
            show_progress=sys.stderr.isatty(),
            alternative_target_prefix=final,
            client=rattler.Client.default_client(),
        )

    with _errors(file):
        asyncio.run(install())


@contextmanager
def _errors(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # rattler's errors have no common base class
        why = str(error).strip()
        message = f"cannot install the conda packages named in {file}: {why}"
        raise ExecutionEnvironmentError(message) from error


def require_local(channels: Iterable[str], file: Path) -> None:
    """Check that all channels are folders of this machine."""
    for channel in channels:
        if not channel.startswith("file:"):
            raise ExecutionEnvironmentError(
                f"cannot use {file} offline: it names the channel {channel}, which is not on this machine; name a "
                "folder with a channel"
            )


def python_spec(required: SpecifierSet) -> str:
    """The match spec for versions of Python. A version without operator matches its prefix; conda's `==` does not."""
    versions = [
        f"{one.version.removesuffix('.*')}.*"
        if one.operator == "==" and one.version.removesuffix(".*").count(".") < _FULL_VERSION_DOTS
        else str(one)
        for one in required
    ]
    return f"python {','.join(sorted(versions))}"
