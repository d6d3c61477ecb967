"""What a declaration requires, and the lock that answers it."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from naiad.config.model.declared_environment import is_conda_declaration, lock_candidates, read_script_block
from naiad.environments.building.lockfiles import ForeignLock, Pin, open_foreign_lock
from naiad.errors import ConfigError, ExecutionEnvironmentError, StaleLockError
from naiad.interpreters.versions import PythonVersion, version_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Declaration", "find_lock", "is_locked", "locked_pins", "read_declaration"]

_PINNED = re.compile(r"(?P<requirement>[^\s;]+==[^\s;]+(\s*;[^\\]*?)?)(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A file that declares an environment.

    Attributes:
        file: The file: a script, `requirements.txt`, `pyproject.toml` or `pylock.toml`.
        text: Everything in it that determines the environment.
        requirements: The requirements in it that are plain names with versions; empty for a lock.
        requires_python: Versions of Python; empty for any.
    """

    file: Path
    text: str
    requirements: tuple[Requirement, ...] = ()
    requires_python: SpecifierSet = field(default_factory=SpecifierSet)

    @property
    def is_script(self) -> bool:
        """Whether it is a script with a block."""
        return self.file.name.endswith(".py")

    @property
    def is_lock(self) -> bool:
        """Whether it is a lock itself."""
        return lock_candidates(self.file) == (self.file,)

    @property
    def digest(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def lock_command(self) -> str:
        """The command that writes its lock."""
        return f"naiad lock {self.file}"


def read_declaration(file: Path) -> Declaration:
    """Read a file that declares an environment.

    Raises:
        ExecutionEnvironmentError: If it cannot be read, or is invalid, or is a script without dependencies.
    """
    try:
        text = file.read_text(encoding="utf-8")
        if file.name.endswith(".py"):
            return _of_script(file, text)
        if file.name == "pyproject.toml":
            return _of_project(file, text)
        return _of_requirements(file, text) if file.name.endswith(".txt") else Declaration(file=file, text=text)
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutionEnvironmentError(f"cannot read {file}: {error}") from error
    except ConfigError as error:
        raise ExecutionEnvironmentError(error.message) from error


def find_lock(declaration: Declaration) -> ForeignLock | None:
    """The lock beside a declaration; None without one.

    Raises:
        ExecutionEnvironmentError: If it cannot be read.
    """
    for path in lock_candidates(declaration.file):
        if path.is_file():
            return _opened(path)
    return None


def is_locked(file: Path, python: PythonVersion) -> bool:
    """Whether the packages of a declaration are locked for a version of Python, so that nothing has to be resolved.

    Raises:
        ExecutionEnvironmentError: If the file or its lock cannot be read.
    """
    if is_conda_declaration(file):
        return any(path.is_file() for path in lock_candidates(file))
    declaration = read_declaration(file)
    lock = find_lock(declaration)
    return lock is not None or _pinned_requirements(declaration, version_text(python)) is not None


def locked_pins(
    declaration: Declaration, lock: ForeignLock | None, python: str, wheels: tuple[Path, ...]
) -> list[Pin] | None:
    """The packages that a lock selects for a version of Python; None if there is no lock.

    A requirements file in which every line has a version and a digest is its own lock.

    Raises:
        StaleLockError: If the lock does not fit the declaration.
        ExecutionEnvironmentError: If the lock is invalid.
    """
    if lock is None:
        return _pinned_requirements(declaration, python)
    try:
        pins = lock.pins(python, wheels=wheels)
    except ConfigError as error:
        raise ExecutionEnvironmentError(error.message) from error
    _require_current(declaration, lock, pins, python)
    return pins


def _opened(path: Path) -> ForeignLock:
    try:
        return open_foreign_lock(path)
    except ConfigError as error:
        raise ExecutionEnvironmentError(error.message) from error


def _of_script(file: Path, text: str) -> Declaration:
    block = read_script_block(text, str(file))
    if block is None or not block.dependencies:
        raise ExecutionEnvironmentError(
            f"{file} has no script block with dependencies; `naiad add {file} numpy` writes one"
        )
    return Declaration(
        file=file,
        text=block.content,
        requirements=tuple(map(Requirement, block.dependencies)),
        requires_python=block.requires_python,
    )


def _of_project(file: Path, text: str) -> Declaration:
    try:
        project: dict[str, Any] = tomllib.loads(text)["project"]
        return Declaration(
            file=file,
            text=text,
            requirements=tuple(map(Requirement, project.get("dependencies", ()))),
            requires_python=SpecifierSet(project.get("requires-python", "")),
        )
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except (AttributeError, KeyError, TypeError, InvalidRequirement, InvalidSpecifier) as error:
        raise ConfigError(f"{file} is invalid: {error!r}") from error


def _of_requirements(file: Path, text: str) -> Declaration:
    found = []
    for line in _logical_lines(text):
        # Options and included files are left to the installer; only plain requirements are compared with the lock.
        try:
            found.append(Requirement(line.partition(" --hash")[0]))
        except InvalidRequirement:
            continue
    return Declaration(file=file, text=text, requirements=tuple(found))


def _logical_lines(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line for line in (re.sub(r"(^|\s)#.*", "", raw).strip() for raw in joined.splitlines()) if line]


def _pinned_requirements(declaration: Declaration, python: str) -> list[Pin] | None:
    if not declaration.file.name.endswith(".txt"):
        return None
    pins = []
    for line in _logical_lines(declaration.text):
        match = _PINNED.fullmatch(line)
        if match is None:
            return None
        requirement = Requirement(match["requirement"])
        if _applies(requirement, python):
            version = str(requirement.specifier).removeprefix("==")
            pins.append(Pin(str(canonicalize_name(requirement.name)), version, tuple(_HASH.findall(match["hashes"]))))
    return sorted(pins, key=lambda pin: pin.name)


def _applies(requirement: Requirement, python: str) -> bool:
    minor = ".".join(python.split(".")[:2])
    values = {"python_version": minor, "python_full_version": python}
    return requirement.marker is None or requirement.marker.evaluate(values)


def _require_current(declaration: Declaration, lock: ForeignLock, pins: list[Pin], python: str) -> None:
    """Reject a lock that lacks a required package, or has another version of it."""
    versions = {str(canonicalize_name(pin.name)): pin.version for pin in pins}
    for requirement in declaration.requirements:
        if not _applies(requirement, python):
            continue
        version = versions.get(canonicalize_name(requirement.name))
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        has = f"it has {requirement.name} {version}" if version else f"it has no {requirement.name}"
        raise StaleLockError(
            f"{lock.path} does not match {declaration.file}, which requires '{requirement}': {has}; update it with "
            f"`{declaration.lock_command}`"
        )
