"""Reading the locks of other tools: `pylock.toml` (PEP 751) and `uv.lock`, for one Python on this machine.

Only what comes from an index counts, by name, version and digest. From where it is fetched is the machine's affair: its
settings for pip decide, as for everything else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, default_environment

from naiad.environments.building.lockfile import Pin
from naiad.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_foreign_lock"]

_Table = Mapping[str, Any]


def read_foreign_lock(lock: Path, python: str, extras: tuple[str, ...]) -> list[Pin]:
    """What a lock says to install under a Python.

    Args:
        lock: `pylock.toml` or `uv.lock`.
        python: Full version.
        extras: Which optional dependencies of the project belong to it.

    Raises:
        ConfigError: It cannot be read, or names something that does not come from an index.
    """
    try:
        table = tomllib.loads(lock.read_text(encoding="utf-8"))
        environment = _environment(python)
        pins = (
            _of_uv(lock, table, environment, extras)
            if lock.name == "uv.lock"
            else _of_pylock(lock, table, environment, extras)
        )
        return sorted(pins, key=lambda pin: pin.name)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {lock}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, InvalidMarker) as error:
        raise ConfigError(f"{lock} is not as its format wants it: {error!r}") from error


def _environment(python: str) -> dict[str, str]:
    """What markers are compared with. Only CPython is built from, so its version is all that may differ from here."""
    here = {name: str(value) for name, value in default_environment().items()}
    minor = ".".join(python.split(".")[:2])
    return {**here, "python_version": minor, "python_full_version": python, "implementation_version": python}


def _of_pylock(lock: Path, table: _Table, environment: dict[str, str], extras: tuple[str, ...]) -> Iterator[Pin]:
    groups = frozenset(table.get("default-groups", ()))
    for package in table["packages"]:
        marker = package.get("marker")
        if marker and not _applies_in_lock(marker, environment, frozenset(extras), groups):
            continue
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        yield _pin(lock, package, [file["hashes"]["sha256"] for file in files])


def _applies_in_lock(marker: str, environment: dict[str, str], extras: frozenset[str], groups: frozenset[str]) -> bool:
    values: dict[str, Any] = {**environment, "extras": extras, "dependency_groups": groups}
    return Marker(marker).evaluate(values, context="lock_file")


def _of_uv(lock: Path, table: _Table, environment: dict[str, str], extras: tuple[str, ...]) -> Iterator[Pin]:
    packages: list[_Table] = table["package"]
    seen: set[tuple[str, str, str]] = set()
    pinned: set[tuple[str, str]] = set()
    waiting: list[tuple[_Table, str]] = []
    for package in packages:
        if _is_project(package):
            waiting.extend((package, extra) for extra in ("", *extras))
    while waiting:
        package, extra = waiting.pop()
        key = (package["name"], package.get("version", ""), extra)
        if key in seen:
            continue
        seen.add(key)
        if not _is_project(package) and key[:2] not in pinned:
            pinned.add(key[:2])
            files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
            yield _pin(lock, package, [file["hash"].removeprefix("sha256:") for file in files])
        wanted = package.get("optional-dependencies", {}).get(extra, ()) if extra else package.get("dependencies", ())
        waiting.extend(_followed(packages, wanted, environment))


def _is_project(package: _Table) -> bool:
    return any(kind in package.get("source", {}) for kind in ("virtual", "editable"))


def _followed(
    packages: list[_Table], wanted: Iterable[_Table], environment: dict[str, str]
) -> Iterator[tuple[_Table, str]]:
    for dependency in wanted:
        if "marker" in dependency and not Marker(dependency["marker"]).evaluate(environment):
            continue
        for package in packages:
            if package["name"] == dependency["name"] and dependency.get("version") in (None, package.get("version")):
                yield from ((package, extra) for extra in ("", *dependency.get("extra", ())))


def _pin(lock: Path, package: _Table, digests: list[str]) -> Pin:
    name = package["name"]
    if not digests or "version" not in package:
        raise ConfigError(
            f"{lock} names '{name}' without version and digest, as what comes from a folder or a repository; "
            "build a wheel of it, and name that in a requirements file"
        )
    return Pin(name, package["version"], tuple(digests))
