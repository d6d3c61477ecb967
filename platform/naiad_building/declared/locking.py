"""`naiad lock`, `naiad add` and `naiad remove`: the lock of a declaration, and the packages of a script."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from naiad.config.model.declared_environment import (
    add_dependencies,
    is_conda_declaration,
    lock_candidates,
    read_script_block,
    remove_dependencies,
)
from naiad.core.errors import ConfigError, ExecutionEnvironmentError, NaiadError
from naiad.core.real_paths import real_path
from naiad.environments.store.package_cache import conda_packages
from naiad_building.base_interpreter import BaseInterpreter, inspect_base
from naiad_building.comparison import PackageChange
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.interpreter import choose_or_fetch_python, choose_python, require_agreement
from naiad_building.declared.package_files import download_files
from naiad_building.declared.resolving import place_lock, resolved_lock
from naiad_building.declared.venv import by_indexes
from naiad_building.lockfiles import Pin, open_foreign_lock
from naiad_building.uv_program import InstallOptions

__all__ = [
    "Edit",
    "LockCheck",
    "LockRequest",
    "LockedDeclaration",
    "adding",
    "check_lock",
    "fetch_locked_wheels",
    "lock_declaration",
    "removing",
]

_NUMPY = "numpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDeclaration:
    """A declaration that was locked just now."""

    file: Path
    lock: Path
    python: str
    versions: Mapping[str, str]
    pins: tuple[Pin, ...]
    base: BaseInterpreter | None
    options: InstallOptions = field(default_factory=InstallOptions)


Edit = Callable[[str], str]
"""The new text of a script, for the version of Python that it is resolved with, `3.12`; for none, if that is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """What is to be locked, and how."""

    file: Path
    cache: Path
    python: str | None = None
    required: SpecifierSet | None = None
    required_by: str = "the model"
    options: InstallOptions
    progress: Callable[[str], None]
    is_upgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCheck:
    """How a lock (None without one) differs from what its declaration resolves to now."""

    file: Path
    lock: Path | None
    is_current: bool
    resolved: LockedDeclaration
    changes: tuple[PackageChange, ...]


def lock_declaration(request: LockRequest, edit: Edit | None = None) -> LockedDeclaration:
    """Resolve a declaration, and write its lock beside it, and the script that *edit* makes of it.

    Raises:
        ConfigError: If the declaration is a lock itself.
        ExecutionEnvironmentError: If nothing satisfies the requirements; an existing lock stays unchanged.
    """
    with _resolved(request, edit) as (path, locked, text), _replacement(request.file, text):
        place_lock(path, request.file)
    return locked


def check_lock(request: LockRequest) -> LockCheck:
    """Resolve a declaration, and compare the result with its lock. Nothing is written."""
    lock = next((each for each in lock_candidates(request.file) if each.is_file()), None)
    with _resolved(request, None) as (path, locked, _):
        is_current = lock == locked.lock and lock.read_bytes() == path.read_bytes()
    before = {} if lock is None or is_current else _versions_in(lock, request, locked)
    after = before if is_current else locked.versions
    changes = tuple(
        PackageChange(name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
    return LockCheck(file=request.file, lock=lock, is_current=is_current, resolved=locked, changes=changes)


def _versions_in(lock: Path, request: LockRequest, locked: LockedDeclaration) -> Mapping[str, str]:
    """The versions that an existing lock selects for the same Python; none if it cannot be used."""
    try:
        if locked.base is None:
            from naiad_building.declared.conda import read_conda_declaration, read_conda_lock

            return read_conda_lock(lock, read_conda_declaration(request.file), _asked(request)).versions
        pins = open_foreign_lock(lock).pins(locked.base.version, wheels=request.options.wheels)
        return {pin.name: pin.version for pin in pins}
    except NaiadError:
        return {}


def _asked(request: LockRequest) -> SpecifierSet:
    return _exactly(request.python) & (request.required or SpecifierSet())


def _exactly(python: str | None) -> SpecifierSet:
    return SpecifierSet(f"=={python}.*" if python else "")


@contextmanager
def _resolved(request: LockRequest, edit: Edit | None) -> Iterator[tuple[Path, LockedDeclaration, str | None]]:
    """A new lock in a temporary folder, what it has, and the new text of the script, if it is edited."""
    file, options, progress = request.file, request.options, request.progress
    if lock_candidates(file) == (file,):
        raise ConfigError(f"{file} is a lock itself; update it with the tool that wrote it")
    if is_conda_declaration(file):
        with _resolved_conda(request) as (path, locked):
            yield path, locked, None
        return
    declaration = read_declaration(file, None if edit is None else edit(""))
    asked = {
        f"{'its block' if declaration.is_script else 'it'}": declaration.requires_python,
        request.required_by: request.required or SpecifierSet(),
        "--python": _exactly(request.python),
    }
    wanted, cache = require_agreement(file, asked), request.cache
    chosen = choose_python(wanted, cache) if options.offline else choose_or_fetch_python(wanted, cache, progress)
    base = inspect_base(chosen.executable)
    text = None if edit is None else edit(base.minor)
    declaration = read_declaration(file, text)
    versions = declaration.requires_python & (request.required or SpecifierSet())
    with resolved_lock(declaration, versions, base, options, progress, is_upgrade=request.is_upgrade) as path:
        # Read before it is written: no lock is better than one from which nothing can be installed.
        pins = tuple(open_foreign_lock(path).pins(base.version, wheels=options.wheels))
        locked = LockedDeclaration(
            file=file,
            lock=file.with_name(path.name),
            python=base.version,
            versions={pin.name: pin.version for pin in pins},
            pins=pins,
            base=base,
            options=replace(options, indexes=declaration.indexes),
        )
        yield path, locked, text


@contextmanager
def _resolved_conda(request: LockRequest) -> Iterator[tuple[Path, LockedDeclaration]]:
    from naiad_building.declared.conda import read_conda_declaration, read_conda_lock, resolve_conda

    file, python = request.file, _asked(request)
    declaration = read_conda_declaration(file)
    cache = conda_packages(request.cache.parent)
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as scratch:
        path = resolve_conda(declaration, Path(scratch), cache, python, request.options, request.progress)
        packages = read_conda_lock(path, declaration, python)
        versions = packages.versions
        locked = LockedDeclaration(
            file=file,
            lock=file.with_name(path.name),
            python=versions.get("python", "none"),
            versions=versions,
            pins=packages.pins,
            base=None,
        )
        yield path, locked


def adding(file: Path, packages: Sequence[str]) -> Edit:
    """Adds packages to the block of a script, for `lock_declaration`. If that fails, the script stays as it was.

    numpy is added, too, unless the script requires it: the server passes tensors as its arrays. A block without
    `requires-python` gets one: its lock is for the Python that it was resolved with, and newer ones.

    Raises:
        ConfigError: If a package is not a requirement, or the file is not a script.
    """
    before = _script_text(file, "add packages to")
    wanted = [*packages]
    block = read_script_block(before, str(file))
    if _NUMPY not in {*_names(packages), *_names(block.dependencies if block else ())}:
        wanted.append(_NUMPY)
    return lambda minor: add_dependencies(before, wanted, str(file), requires_python=f">={minor}" if minor else "")


def removing(file: Path, packages: Sequence[str]) -> Edit:
    """Removes packages from the block of a script, for `lock_declaration`. If that fails, the script stays as it was.

    Raises:
        ConfigError: If the block does not require one of them, or the file is not a script.
    """
    after = remove_dependencies(_script_text(file, "remove packages from"), packages, str(file))
    return lambda _: after


def _script_text(file: Path, action: str) -> str:
    if not file.name.endswith(".py"):
        raise ConfigError(f"cannot {action} {file}: only scripts have a block; edit it, and run `naiad lock`")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def fetch_locked_wheels(locked: LockedDeclaration, folder: Path, progress: Callable[[str], None]) -> int:
    """Download the wheels that a lock selects into a folder, for `--offline`; returns how many files it has."""
    if locked.base is None:
        raise ConfigError(
            f"cannot download the conda packages of {locked.file}: a folder of wheels has none; name a folder with a "
            "channel, or `naiad push` the repository where the network is"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for indexes, group in by_indexes(locked.pins, locked.options.indexes):
        options = replace(locked.options, indexes=indexes)
        download_files(group, real_path(folder), locked.file, locked.base, options, progress)
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
