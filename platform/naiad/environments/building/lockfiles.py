"""`requirements.lock`: every package of a recipe with version and digest, for each Python that it was resolved for.

It is a requirements file as pip reads it with `--require-hashes`. Its first lines say what it holds for.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, default_environment
from packaging.utils import canonicalize_name

from naiad.environments.archives.manifest import host_platform
from naiad.environments.building.recipe import Recipe
from naiad.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LockHead", "Pin", "lock_text", "read_foreign_lock", "read_head", "require_current", "sources_digest"]

_HEAD = re.compile(r"^# (python|platform|sources): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pin:
    """One package that a resolution chose.

    Attributes:
        name: Its name.
        version: Its version.
        digests: SHA-256 of the files that may be installed.
    """

    name: str
    version: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LockHead:
    """What a lock holds for.

    Attributes:
        pythons: Versions of Python, `3.12`.
        platform: `linux-x86_64`.
        sources: Digest of what it was resolved from.
    """

    pythons: tuple[str, ...]
    platform: str
    sources: str


def lock_text(recipe: Recipe, chosen: Mapping[str, Iterable[Pin]]) -> str:
    """The lock for what was chosen under each version of Python."""
    pythons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    digests: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for python, pins in chosen.items():
        for pin in pins:
            key = str(canonicalize_name(pin.name)), pin.version
            pythons[key].append(python)
            digests[key].update(pin.digests)
    lines = [
        "# Written by `naiad env lock`: change what it was resolved from and write it anew.",
        f"# python: {' '.join(chosen)}",
        f"# platform: {host_platform()}",
        f"# sources: {sources_digest(recipe)}",
    ]
    for name, version in sorted(pythons):
        key = name, version
        everywhere = len(pythons[key]) == len(chosen)
        marker = " or ".join(f'python_version == "{python}"' for python in pythons[key])
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(digests[key]))
        lines.append(f"{name}=={version}{'' if everywhere else f' ; {marker}'}{hashes}")
    return "\n".join(lines) + "\n"


def read_head(lock: Path) -> LockHead:
    """What a lock holds for.

    Raises:
        ConfigError: It cannot be read, or its first lines are not there.
    """
    try:
        found = dict(_HEAD.findall(lock.read_text(encoding="utf-8")))
        return LockHead(tuple(found["python"].split()), found["platform"], found["sources"])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {lock}: {error}") from error
    except KeyError as error:
        raise ConfigError(
            f"{lock} has no line '# {error.args[0]}: ...': it was not written by `naiad env lock`"
        ) from None


def require_current(recipe: Recipe, lock: Path, python: str) -> None:
    """Refuse a lock that was resolved from something else, or for something else, than what is to be built.

    Raises:
        ConfigError: Says what differs.
    """
    head = read_head(lock)
    command = f"naiad env lock {recipe.folder}"
    anew = f"write it anew with `{command}`"
    if head.sources != sources_digest(recipe):
        raise ConfigError(f"{lock} was resolved from other requirements than those of the recipe now; {anew}")
    if head.platform != host_platform():
        raise ConfigError(f"{lock} is for {head.platform}, this machine is {host_platform()}; {anew}")
    if python not in head.pythons:
        every = " ".join(f"--python {one}" for one in (*head.pythons, python))
        raise ConfigError(
            f"{lock} is for Python {', '.join(head.pythons)}, not for {python}; write it for that, too, with "
            f"`{command} {every}`"
        )


def sources_digest(recipe: Recipe) -> str:
    """A digest of what decides a resolution; remarks and empty lines do not."""
    digest = hashlib.sha256(repr((recipe.locked, recipe.extras)).encode())
    for source in (recipe.requirements, recipe.project, recipe.conda):
        for line in source.read_text(encoding="utf-8").splitlines() if source is not None else ():
            if line.strip() and not line.lstrip().startswith("#"):
                digest.update(line.strip().encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


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
