"""`naiad lock` and `naiad add`: writing the lock of a declaration, and adding packages to a script."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from naiad.config.model.declared_environment import (
    add_dependencies,
    is_conda_declaration,
    lock_candidates,
    read_script_block,
)
from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.core.real_paths import real_path
from naiad.environments.store.package_cache import conda_packages
from naiad_building.base_interpreter import BaseInterpreter, inspect_base
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.interpreter import choose_or_fetch_python, choose_python
from naiad_building.declared.resolving import place_lock, resolved_lock
from naiad_building.declared.venv import by_indexes
from naiad_building.indexes import NO_INDEXES, PackageIndexes
from naiad_building.installers import InstallOptions, download_wheels
from naiad_building.lockfiles import Pin, open_foreign_lock, pin_lines
from naiad_building.requirements import Requirements

__all__ = ["Edit", "LockedDeclaration", "add_packages", "fetch_locked_wheels", "lock_declaration"]

_NUMPY = "numpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDeclaration:
    """A declaration that was locked just now.

    Attributes:
        file: The declaration.
        lock: Its lock.
        python: Version of Python that it was resolved for.
        versions: Version of each package that the lock selects for it, by name.
        pins: Those packages of PyPI.
        base: The interpreter of this machine that it was resolved with; None for conda packages.
        indexes: Indexes that the declaration names itself.
    """

    file: Path
    lock: Path
    python: str
    versions: Mapping[str, str]
    pins: tuple[Pin, ...]
    base: BaseInterpreter | None
    indexes: PackageIndexes = NO_INDEXES


Edit = Callable[[str], str]
"""The new text of a script, for the version of Python that it is resolved with, `3.12`; for none, if that is empty."""


def lock_declaration(
    file: Path,
    *,
    cache: Path,
    python: str | None = None,
    required: SpecifierSet | None = None,
    options: InstallOptions,
    progress: Callable[[str], None],
    edit: Edit | None = None,
) -> LockedDeclaration:
    """Resolve a declaration, and write its lock beside it.

    Args:
        file: The declaration.
        cache: Folder of cached facts about interpreters, in the store.
        python: Version of Python to resolve with, `3.12`; None for the server's own, else the newest.
        required: Versions of Python that the model supports; None for any.
        options: Sources of packages.
        progress: Called with a line for each step.
        edit: Changes the text of a script first, which is written with the lock.

    Raises:
        ConfigError: If the declaration is a lock itself.
        ExecutionEnvironmentError: If nothing satisfies the requirements; an existing lock stays unchanged.
    """
    if lock_candidates(file) == (file,):
        raise ConfigError(f"{file} is a lock itself; update it with the tool that wrote it")
    asked = SpecifierSet(f"=={python}.*" if python else "") & (required or SpecifierSet())
    if is_conda_declaration(file):
        return _lock_conda(file, cache.parent, asked, options, progress)
    declaration = read_declaration(file, None if edit is None else edit(""))
    wanted = declaration.requires_python & asked
    chosen = choose_python(wanted, cache) if options.offline else choose_or_fetch_python(wanted, cache, progress)
    base = inspect_base(chosen.executable)
    text = None if edit is None else edit(base.minor)
    declaration = read_declaration(file, text)
    with resolved_lock(declaration, base, options, progress) as resolved:
        # Read before it is written: no lock is better than one from which nothing can be installed.
        pins = tuple(open_foreign_lock(resolved).pins(base.version, wheels=options.wheels))
        with _replacement(file, text):
            lock = place_lock(resolved, file)
    versions = {pin.name: pin.version for pin in pins}
    return LockedDeclaration(
        file=file,
        lock=lock,
        python=base.version,
        versions=versions,
        pins=pins,
        base=base,
        indexes=NO_INDEXES if options.offline else declaration.indexes,
    )


def _lock_conda(
    file: Path,
    store: Path,
    python: SpecifierSet,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> LockedDeclaration:
    from naiad_building.declared.conda import read_conda_declaration, read_conda_lock, resolve_conda

    declaration = read_conda_declaration(file)
    cache = conda_packages(store)
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as scratch:
        resolved = resolve_conda(declaration, Path(scratch), cache, python, options, progress)
        packages = read_conda_lock(resolved, declaration, python)
        lock = place_lock(resolved, file)
    versions = packages.versions
    return LockedDeclaration(
        file=file, lock=lock, python=versions.get("python", "none"), versions=versions, pins=packages.pins, base=None
    )


def add_packages(
    file: Path, packages: Sequence[str], lock: Callable[[Path, Edit], LockedDeclaration]
) -> LockedDeclaration:
    """Add packages to the block of a script, and lock it. If that fails, the script stays as it was.

    numpy is added, too, unless the script requires it: the server passes tensors as its arrays. A block without
    `requires-python` gets one: its lock is for the Python that it was resolved with, and newer ones.

    Args:
        file: The script.
        packages: Requirements.
        lock: Locks the script with a change, and writes both.

    Raises:
        ConfigError: If a package is not a requirement, or the file is not a script.
        ExecutionEnvironmentError: If nothing satisfies the requirements.
    """
    if not file.name.endswith(".py"):
        raise ConfigError(f"cannot add packages to {file}: only scripts have a block; edit it, and run `naiad lock`")
    try:
        before = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    wanted = [*packages]
    block = read_script_block(before, str(file))
    if _NUMPY not in {*_names(packages), *_names(block.dependencies if block else ())}:
        wanted.append(_NUMPY)
    return lock(
        file, lambda minor: add_dependencies(before, wanted, str(file), requires_python=f">={minor}" if minor else "")
    )


def fetch_locked_wheels(locked: LockedDeclaration, folder: Path, progress: Callable[[str], None]) -> int:
    """Download the wheels that a lock selects into a folder, for `--offline`; returns how many files it has.

    Raises:
        ExecutionEnvironmentError: If a package cannot be downloaded.
    """
    if locked.base is None:
        raise ConfigError(
            f"cannot download the conda packages of {locked.file}: a folder of wheels has none; name a folder with a "
            "channel, or `naiad push` the repository where the network is"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for indexes, group in by_indexes(locked.pins, locked.indexes):
        requirements = Requirements(pin_lines(group), locked.file, complete=True, hashed=True)
        download_wheels(locked.file.name, requirements, locked.base, real_path(folder), progress, indexes)
    return len(list(folder.iterdir()))


def _names(lines: Sequence[str]) -> set[str]:
    return {_name(line) for line in lines}


def _name(line: str) -> str:
    try:
        return str(canonicalize_name(Requirement(line).name))
    except InvalidRequirement as error:
        raise ConfigError(f"'{line}' is not a requirement; write for example 'scikit-learn==1.5.*'") from error


@contextmanager
def _replacement(file: Path, text: str | None) -> Iterator[None]:
    """Replace a file at the end of the context, in one step and with its permissions; the text is written before.

    The lock is placed in the context: a process that is killed before leaves both as they were.
    """
    if text is None:
        yield
        return
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.chmod(file.stat().st_mode)
        yield
        unfinished.replace(file)
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
