"""`requirements.lock`: every package of a recipe with version and digest, for each Python that it was resolved for.

It is a requirements file as pip reads it with `--require-hashes`. Its first lines say what it holds for.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from naiad.environments.archives.manifest import host_platform
from naiad.environments.building.recipe import Recipe
from naiad.errors import ConfigError

__all__ = ["LockHead", "Pin", "lock_text", "read_head", "require_current", "sources_digest"]

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
