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
from naiad_building.comparison import PackageChange, package_changes
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.interpreter import choose_python, require_agreement
from naiad_building.declared.package_files import download_files
from naiad_building.declared.resolving import resolved_lock
from naiad_building.lockfiles import Pin, open_foreign_lock
from naiad_building.uv_program import InstallOptions, grouped

_NUMPY = "numpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDeclaration:
    """A declaration that was locked just now; *base* is None for conda packages."""

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
    required: SpecifierSet = field(default_factory=SpecifierSet)
    required_by: str = "the model"
    options: InstallOptions
    is_upgrade: bool = False

    @property
    def flag(self) -> SpecifierSet:
        """The versions that `--python` asks for."""
        return SpecifierSet(f"=={self.python}.*" if self.python else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCheck:
    """How a lock (None without one) differs from what its declaration resolves to now."""

    lock: Path | None
    is_current: bool
    resolved: LockedDeclaration
    changes: tuple[PackageChange, ...]


def lock_declaration(request: LockRequest, edit: Edit | None = None) -> LockedDeclaration:
    """Resolve a declaration, and write its lock beside it, and the script that *edit* makes of it.

    Nothing is written if nothing satisfies the requirements.
    """
    with _resolved(request, edit) as (path, locked, text):
        _write({locked.lock: path.read_bytes(), **({} if text is None else {request.file: text.encode()})})
    return locked


def check_lock(request: LockRequest) -> LockCheck:
    """Resolve a declaration, and compare the result with its lock. Nothing is written."""
    lock = next((each for each in lock_candidates(request.file) if each.is_file()), None)
    with _resolved(request, None) as (path, locked, _):
        is_current = lock == locked.lock and lock.read_bytes() == path.read_bytes()
    before = {} if lock is None else _versions_in(lock, request, locked)
    changes = () if is_current else package_changes(before, locked.versions)
    return LockCheck(lock=lock, is_current=is_current, resolved=locked, changes=changes)


def _versions_in(lock: Path, request: LockRequest, locked: LockedDeclaration) -> Mapping[str, str]:
    """The versions that an existing lock selects for the same Python; none if it cannot be used."""
    try:
        if locked.base is None:
            from naiad_building.declared.conda import read_conda_declaration, read_conda_lock

            return read_conda_lock(lock, read_conda_declaration(request.file), request.flag & request.required).versions
        pins = open_foreign_lock(lock).pins(locked.base.version, wheels=request.options.wheels)
        return {pin.name: pin.version for pin in pins}
    except NaiadError:
        return {}


@contextmanager
def _resolved(request: LockRequest, edit: Edit | None) -> Iterator[tuple[Path, LockedDeclaration, str | None]]:
    """A new lock in a temporary folder, what it has, and the new text of the script, if it is edited."""
    file, options = request.file, request.options
    if lock_candidates(file) == (file,):
        raise ConfigError(f"{file} is a lock itself; update it with the tool that wrote it")
    if is_conda_declaration(file):
        with _resolved_conda(request) as (path, locked):
            yield path, locked, None
        return
    declaration = read_declaration(file, None if edit is None else edit(""))
    asked = {
        "its block" if declaration.is_script else "it": declaration.requires_python,
        request.required_by: request.required,
        "--python": request.flag,
    }
    wanted = require_agreement(file, asked)
    chosen = choose_python(wanted, request.cache, None if options.offline else options.progress)
    base = inspect_base(chosen.executable)
    text = None if edit is None else edit(base.minor)
    declaration = read_declaration(file, text)
    versions = declaration.requires_python & request.required
    with resolved_lock(declaration, versions, base, options, is_upgrade=request.is_upgrade) as path:
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

    file, python = request.file, request.flag & request.required
    declaration = read_conda_declaration(file)
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as scratch:
        cache = conda_packages(request.cache.parent)
        path = resolve_conda(declaration, Path(scratch), cache, python, request.options)
        packages = read_conda_lock(path, declaration, python)
        locked = LockedDeclaration(
            file=file,
            lock=file.with_name(path.name),
            python=packages.versions.get("python", "none"),
            versions=packages.versions,
            pins=packages.pins,
            base=None,
        )
        yield path, locked


def adding(file: Path, packages: Sequence[str]) -> Edit:
    """Adds packages to the block of a script, for `lock_declaration`. If that fails, the script stays as it was.

    numpy is added, too, unless the script requires it: the server passes tensors as its arrays. A block without
    `requires-python` gets one: its lock is for the Python that it was resolved with, and newer ones.

    Raises ConfigError if a package is not a requirement, or the file is not a script.
    """
    before = _script_text(file, "add packages to")
    block = read_script_block(before, str(file))
    names = set(map(_name, (*packages, *(block.dependencies if block else ()))))
    wanted = [*packages, *({_NUMPY} - names)]
    return lambda minor: add_dependencies(before, wanted, str(file), requires_python=f">={minor}" if minor else "")


def removing(file: Path, packages: Sequence[str]) -> Edit:
    """Removes packages from the block of a script, for `lock_declaration`. If that fails, the script stays as it was.

    Raises ConfigError if the block does not require one of them, or the file is not a script.
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


def _name(line: str) -> str:
    try:
        return canonicalize_name(Requirement(line).name)
    except InvalidRequirement as error:
        raise ConfigError(f"'{line}' is not a requirement; write for example 'scikit-learn==1.5.*'") from error


def fetch_locked_wheels(locked: LockedDeclaration, folder: Path) -> int:
    """Download the wheels that a lock selects into a folder, for `--offline`; returns how many files it has."""
    if locked.base is None:
        raise ConfigError(
            f"cannot download the conda packages of {locked.file}: a folder of wheels has none; name a folder with a "
            "channel, or `naiad push` the repository where the network is"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for options, group in grouped(locked.pins, locked.options):
        download_files(group, real_path(folder), locked.file, locked.base, options)
    return len(list(folder.iterdir()))


def _write(texts: Mapping[Path, bytes]) -> None:
    """Replace files in this order when all are written: a process that is killed before leaves them as they were."""
    unfinished = {file: file.with_name(f".{file.name}.{os.getpid()}") for file in texts}
    file = next(iter(texts))
    try:
        for file, written in unfinished.items():
            written.write_bytes(texts[file])
            if file.exists():
                written.chmod(file.stat().st_mode)
        for file, written in unfinished.items():
            _place(written, file)
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        for written in unfinished.values():
            written.unlink(missing_ok=True)


def _place(written: Path, file: Path) -> None:
    written.replace(file)  # in one step, so that no server ever reads half a lock
