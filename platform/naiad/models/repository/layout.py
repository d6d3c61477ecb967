"""The directory layout of model repositories: `<repository>/<model>/<version>/`."""

from __future__ import annotations

import logging
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.config.model.model_config import All, Latest, Specific, VersionPolicy
from naiad.core.errors import RepositoryError
from naiad.core.real_paths import real_path
from naiad.protocol.model_names import model_key

_log = logging.getLogger("naiad.repository")

# Reason of a model that is not loaded for this cause, as the repository index prints it.
DUPLICATE_REASON = "model appears in two or more repositories"

_RESERVED = frozenset({"warmup", "initial_state", "configs"})
_NEVER_MODELS = {
    "__pycache__": "it has bytecode of Python",
    "lost+found": "it belongs to the file system",
}
_CONFIG_FILENAME = "config.pbtxt"
_MODEL_FILE = re.compile(r"model\.\w+")
_LEADING_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)
_LARGEST_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where the files of a model are."""

    name: str
    repository: Path
    directory: Path
    namespace: str = ""  # location of its repository, where repositories are namespaces; else empty
    uri: str = ""  # URI from which its directory was copied; empty for a directory of this machine
    is_renamed: bool = False  # whether `name` was registered, and overrides the name in the configuration

    @property
    def key(self) -> str:
        return model_key(self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryScan:
    """The models of all repositories by key, sorted, but *duplicates*: those of keys that several repositories have."""

    models: Mapping[str, ModelFiles]
    duplicates: Mapping[str, tuple[ModelFiles, ...]]


def explain_no_directory(path: Path) -> str:
    """Why a path that was given for the directory of a model is not one."""
    if not path.exists():
        return "it does not exist"
    model = next((folder for folder in list(path.parents)[:2] if (folder / _CONFIG_FILENAME).exists()), None)
    return "it is not a directory" if model is None else f"it is a file; name the directory of its model, '{model}'"


def explain_no_model(directory: Path) -> str:
    """Why a directory in a repository cannot be a model, so that it is skipped; empty for all that may be one.

    The reference takes each directory for a model, `.git` and `lost+found` too, cannot load these, and fails to start.
    A directory that cannot be read may be a model, and so may one below which models are: the error of its load says
    which folder may be the repository.
    """
    if directory.name in _NEVER_MODELS:
        return _NEVER_MODELS[directory.name]
    if (directory / _CONFIG_FILENAME).exists() or (directory / "configs").is_dir():
        return ""
    try:
        for entry in directory.iterdir():
            if _MODEL_FILE.fullmatch(entry.name):
                return ""
            is_folder = entry.is_dir()
            if is_folder and (_LEADING_NUMBER.match(entry.name) or any(map(_is_part_of_model, entry.iterdir()))):
                return ""
    except OSError:
        return ""
    return "it has no version folder, configuration or model file"


def is_never_model(name: str) -> bool:
    """Whether a directory of that name is never a model, whatever it contains."""
    return name in _NEVER_MODELS


def _is_part_of_model(path: Path) -> bool:
    """Whether an entry of a folder in a directory shows that the directory or that folder was meant as a model."""
    is_file = path.name == _CONFIG_FILENAME or _MODEL_FILE.fullmatch(path.name) is not None
    return is_file or (path / _CONFIG_FILENAME).exists()


def combine(found: Iterable[ModelFiles]) -> RepositoryScan:
    """Combine the models of several repositories; a key that two of them contain is a duplicate and is logged."""
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
    """The model of key *name*, else all models of that name in any namespace; *models* are by key."""
    if name in models:
        return [models[name]]
    return [files for files in models.values() if files.namespace and files.name == name]


def subdirectories(directory: Path) -> list[Path]:
    """The directories in a directory, sorted by name."""
    return sorted((entry for entry in directory.iterdir() if entry.is_dir()), key=lambda entry: entry.name)


def available_versions(files: ModelFiles) -> dict[int, Path]:
    """The version directories of a model by number, ascending; other directories are skipped with a warning.

    Where two names have the same number, such as `2` and `2abc`, the plain number wins.
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
    """The number that a directory's name starts with, or None: `2abc` is version 2, as in the reference."""
    match = _LEADING_NUMBER.match(name)
    if match is None or _has_leading_zeros(name):
        return None
    number = int(match[1])
    return number if number <= _LARGEST_VERSION else None


def mkdir_command(directory: Path) -> str:
    """The command that makes the folder of a first version in a model's directory."""
    return f"mkdir {shlex.quote(str(directory / '1'))}"


def versions_to_load(
    policy: VersionPolicy, available: Iterable[int], model: str, directory: Path | None = None
) -> tuple[int, ...]:
    """The versions a policy selects, ascending; *model* and *directory* are for the error if there are none."""
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
            f"its versions are: {', '.join(map(str, present))}"
            if present
            else "none of its folders is a version, such as 1/"
        )
        if directory is not None and not present:
            there += f"; git keeps no empty folder, as that of an ensemble is: `{mkdir_command(directory)}` makes one"
        raise RepositoryError(
            f"at least one version must be available under the version policy of model '{model}' ({there})",
        )
    return chosen


def visible_directories(repository: Path) -> list[Path]:
    """The directories of a repository that are not hidden, sorted by name."""
    if not repository.is_dir():
        raise RepositoryError(f"repository path is not a valid directory: {repository}")
    try:
        return [entry for entry in subdirectories(repository) if not entry.name.startswith(".")]
    except OSError as error:
        raise RepositoryError(f"failed to poll model repository '{repository}': {error.strerror}") from error


def is_inside(path: Path, directory: Path) -> bool:
    """Whether a path that a configuration names is in a model's directory, links followed; blocks."""
    return real_path(path).is_relative_to(real_path(directory))


def make_temporary_directory(prefix: str, parent: str | None = None) -> Path:
    """Make a temporary directory for the files of a model that are not in a local repository; the caller deletes it."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise RepositoryError(
            f"cannot make a temporary folder{f' in {parent}' if parent else ''}: {error.strerror or error}; "
            f"{'make that one that can be written' if parent else 'name a folder that can be written by TMPDIR'}"
        ) from error


def _has_leading_zeros(name: str) -> bool:
    return len(name) > 1 and name.startswith("0")


def _flaw(name: str) -> str:
    if _has_leading_zeros(name):
        return "contains leading zeros in its directory name"
    return "fails to convert to integral number"
