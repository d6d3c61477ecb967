"""What lies where in model repositories: `<repository>/<model>/<version>/`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.config.model.model_config import All, Latest, Specific, VersionPolicy
from naiad.errors import RepositoryError
from naiad.protocol.model_names import model_key

__all__ = [
    "DUPLICATE_REASON",
    "ModelFiles",
    "RepositoryScan",
    "available_versions",
    "combine",
    "model_directories",
    "models_named",
    "scan",
    "subdirectories",
    "version_number",
    "versions_to_load",
]

_log = logging.getLogger("naiad.repository")

DUPLICATE_REASON = "model appears in two or more repositories"
"""Why a model of that name is not loaded, as the repository index prints it."""

_RESERVED = frozenset({"warmup", "initial_state", "configs"})
_LEADING_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)
_LARGEST_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model lies.

    Attributes:
        name: Its name: that of its directory, unless it was given another.
        repository: The repository that holds it.
        directory: Its directory.
        namespace: Its repository as it was given, where repositories are namespaces; else empty.
        uri: Where its directory was copied from; empty if it lies on this machine.
        is_renamed: Whether it was given another name, whatever its configuration says.
    """

    name: str
    repository: Path
    directory: Path
    namespace: str = ""
    uri: str = ""
    is_renamed: bool = False

    @property
    def key(self) -> str:
        """What tells it from all others: its name, in a namespace."""
        return model_key(self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryScan:
    """What the repositories hold.

    Attributes:
        models: Models by key, in its order.
        duplicates: Keys found in more than one repository, with the places; none of them is in `models`.
    """

    models: Mapping[str, ModelFiles]
    duplicates: Mapping[str, tuple[ModelFiles, ...]]


def scan(repositories: Sequence[Path]) -> RepositoryScan:
    """List the models of some folders: every directory is one, but for hidden ones.

    The reference takes `.git` and the like for models too, cannot load them and gives up at start-up.

    Raises:
        RepositoryError: If a repository is not a directory.
    """
    return combine(
        # One repository named twice is one repository.
        ModelFiles(name=directory.name, repository=repository, directory=directory)
        for repository in dict.fromkeys(repositories)
        for directory in model_directories(repository)
    )


def combine(found: Iterable[ModelFiles]) -> RepositoryScan:
    """What repositories hold together; what two of them hold is no model, and is logged."""
    places: dict[str, list[ModelFiles]] = {}
    for files in found:
        places.setdefault(files.key, []).append(files)
    for key, several in sorted(places.items()):
        if len(several) > 1:
            where = ", ".join(files.uri or str(files.directory) for files in several)
            _log.error("failed to poll model '%s': not unique across all model repositories (it is in %s)", key, where)
    return RepositoryScan(
        models={key: several[0] for key, several in sorted(places.items()) if len(several) == 1},
        duplicates={key: tuple(several) for key, several in sorted(places.items()) if len(several) > 1},
    )


def models_named(name: str, models: Mapping[str, ModelFiles]) -> list[ModelFiles]:
    """Those of *models*, which are by key, that have a name; or the one of a key."""
    if name in models:
        return [models[name]]
    return [files for files in models.values() if files.namespace and files.name == name]


def subdirectories(directory: Path) -> list[Path]:
    """The directories in a directory, by name."""
    return sorted((entry for entry in directory.iterdir() if entry.is_dir()), key=lambda entry: entry.name)


def available_versions(files: ModelFiles) -> dict[int, Path]:
    """The version directories of a model, ascending; others are skipped with a warning.

    Where two names mean the same version, such as `2` and `2abc`, the plain number is it.
    """
    versions: dict[int, Path] = {}
    for directory in sorted(subdirectories(files.directory), key=lambda entry: (not entry.name.isdecimal(), entry)):
        if directory.name in _RESERVED:
            continue
        number = version_number(directory.name)
        if number is None:
            _log.warning("ignore version directory '%s' which %s: %s", directory.name, _flaw(directory.name), directory)
        else:
            versions.setdefault(number, directory)
    return dict(sorted(versions.items()))


def version_number(name: str) -> int | None:
    """The number at the start of a directory's name, if it has one: `2abc` is version 2, as for the reference."""
    match = _LEADING_NUMBER.match(name)
    if match is None or _has_leading_zeros(name):
        return None
    number = int(match[1])
    return number if number <= _LARGEST_VERSION else None


def versions_to_load(policy: VersionPolicy, available: Iterable[int], model: str) -> tuple[int, ...]:
    """The versions a policy selects, ascending.

    Raises:
        RepositoryError: If there is none.
    """
    present = sorted(available)
    match policy:
        case Specific(wanted):
            for version in sorted(set(wanted).difference(present)):
                _log.error(
                    "version %d is specified for model '%s', but the version directory is not present", version, model
                )
            chosen = tuple(version for version in present if version in wanted)
        case Latest(count):
            chosen = tuple(present[-count:] if count else ())
        case All():
            chosen = tuple(present)
    if not chosen:
        there = (
            f"there are {', '.join(map(str, present))}" if present else "none of its folders is a version, such as 1/"
        )
        raise RepositoryError(
            f"at least one version must be available under the version policy of model '{model}' ({there})",
        )
    return chosen


def model_directories(repository: Path) -> list[Path]:
    """The directories of models in a repository, by name.

    Raises:
        RepositoryError: If it is not a directory.
    """
    if not repository.is_dir():
        raise RepositoryError(f"repository path is not a valid directory: {repository}")
    try:
        return [entry for entry in subdirectories(repository) if not entry.name.startswith(".")]
    except OSError as error:
        raise RepositoryError(f"failed to poll model repository '{repository}': {error.strerror}") from error


def _has_leading_zeros(name: str) -> bool:
    return len(name) > 1 and name.startswith("0")


def _flaw(name: str) -> str:
    if _has_leading_zeros(name):
        return "contains leading zeros in its directory name"
    return "fails to convert to integral number"
