"""What a declaration requires, and the lock that answers it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from packaging.markers import InvalidMarker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from naiad.config.model.declared_environment import PYTHON_ENV, is_conda_declaration, lock_candidates, read_script_block
from naiad.core.errors import ConfigError, ExecutionEnvironmentError, StaleLockError
from naiad.core.toml import explain_toml_error, tomllib
from naiad.sources.interpreters.versions import PythonVersion, version_text
from naiad_building.indexes import (
    INDEX_OPTIONS,
    PackageIndexes,
    indexes_of_options,
    indexes_of_uv,
    parse_options,
)
from naiad_building.lockfiles import ForeignLock, Pin, open_foreign_lock

_PINNED = re.compile(r"(?P<requirement>[^\s;]+==[^\s;]+(\s*;[^\\]*?)?)(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_INCLUDED = frozenset({"-r", "--requirement"})
_CONSTRAINTS = frozenset({"-c", "--constraint"})
_EDITABLE = frozenset({"-e", "--editable"})
_INVALID = (AttributeError, InvalidMarker, InvalidRequirement, InvalidSpecifier, KeyError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A file that declares an environment."""

    file: Path
    text: str  # all in it, and in files that it includes, that determines the environment
    requirements: tuple[Requirement, ...] = ()  # that are names with versions; empty for a lock
    requires_python: SpecifierSet = field(default_factory=SpecifierSet)
    constraints: tuple[Requirement, ...] = ()  # versions that packages must have if something requires them
    overrides: tuple[Requirement, ...] = ()  # that replace all others of the same package
    indexes: PackageIndexes = field(default_factory=PackageIndexes)
    has_options: bool = False  # whether it has options that are not about indexes and other files
    unlockable: str = ""  # why no lock can be written from it; empty if one can
    editable: tuple[str, str, str] | None = None  # place, line and path of an editable package; None without one

    @property
    def is_script(self) -> bool:
        return self.file.name.endswith(".py")

    @property
    def is_requirements(self) -> bool:
        return self.file.suffix in {".txt", ".in"}

    @property
    def is_lock(self) -> bool:
        return lock_candidates(self.file) == (self.file,)

    @property
    def lock_command(self) -> str:
        return f"naiad lock {self.file}"


def read_declaration(file: Path, text: str | None = None) -> Declaration:
    """Read a file that declares an environment, or its text."""
    try:
        text = file.read_text(encoding="utf-8-sig") if text is None else text
        if file.name.endswith(".py"):
            return _of_script(file, text)
        if file.name == "pyproject.toml":
            return _of_project(file, text)
        if file.name == PYTHON_ENV:
            return _of_python_env(file, text)
        return Declaration(file=file, text=text) if file.suffix == ".toml" else _of_requirements(file, text)
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutionEnvironmentError(f"cannot read {file}: {error}") from error
    except ConfigError as error:
        raise ExecutionEnvironmentError(error.message) from error


def find_lock(declaration: Declaration) -> ForeignLock | None:
    """The lock beside a declaration; None without one."""
    found = (path for path in lock_candidates(declaration.file) if path.is_file())
    return next(map(open_foreign_lock, found), None)


def is_locked(file: Path, python: PythonVersion) -> bool:
    """Whether the packages of a declaration are locked for a version of Python, so that nothing has to be resolved."""
    if is_conda_declaration(file):
        return any(path.is_file() for path in lock_candidates(file))
    declaration = read_declaration(file)
    lock = find_lock(declaration)
    return lock is not None or _pinned_requirements(declaration, version_text(python)) is not None


def locked_pins(
    declaration: Declaration, lock: ForeignLock | None, python: str, wheels: tuple[Path, ...]
) -> list[Pin] | None:
    """The packages that a lock selects for a version of Python; None without a lock.

    A requirements file in which every line has a version and a digest is its own lock.

    Raises StaleLockError if the lock does not fit the declaration.
    """
    if lock is None:
        return _pinned_requirements(declaration, python)
    pins = lock.pins(python, wheels=wheels)
    _require_current(declaration, lock, pins, python)
    return pins


def _of_script(file: Path, text: str) -> Declaration:
    block = read_script_block(text, str(file))
    if block is None or not block.dependencies:
        raise ExecutionEnvironmentError(
            f"{file} has no script block with dependencies; `naiad add {file} numpy` writes one"
        )
    requirements = tuple(map(Requirement, block.dependencies))
    try:
        table = tomllib.loads(block.content)
        return _declared(file, block.content, requirements, block.requires_python, table)
    except _INVALID as error:
        raise ConfigError(f"the script block of {file}: [tool.uv] is invalid: {error!r}") from error


def _of_project(file: Path, text: str) -> Declaration:
    try:
        table: dict[str, Any] = tomllib.loads(text)
        project = table["project"]
        requirements = tuple(map(Requirement, project.get("dependencies", ())))
        declared = _declared(file, text, requirements, SpecifierSet(project.get("requires-python", "")), table)
        return replace(declared, unlockable=_DYNAMIC) if "dependencies" in project.get("dynamic", ()) else declared
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {explain_toml_error(error, text)}") from error
    except _INVALID as error:
        raise ConfigError(f"{file} is invalid: {error!r}") from error


def _declared(
    file: Path, text: str, requirements: tuple[Requirement, ...], requires_python: SpecifierSet, table: dict[str, Any]
) -> Declaration:
    """A declaration with what the table `[tool.uv]` of a script or a project says about its environment."""
    settings = table.get("tool", {}).get("uv", {})
    unlockable = _direct_reference(requirements)
    for package, sources in settings.get("sources", {}).items():
        entries: list[Mapping[str, Any]] = sources if isinstance(sources, list) else [sources]
        if other := sorted(key for entry in entries for key in entry if key in _OTHER_SOURCES):
            unlockable = f"[tool.uv.sources] takes '{package}' from a {_OTHER_SOURCES[other[0]]}; {_WHEEL}"
    return Declaration(
        file=file,
        text=text,
        requirements=requirements,
        requires_python=requires_python,
        constraints=tuple(map(Requirement, settings.get("constraint-dependencies", ()))),
        overrides=tuple(map(Requirement, settings.get("override-dependencies", ()))),
        indexes=indexes_of_uv(settings, file.parent),
        unlockable=unlockable,
    )


_WHEEL = (
    "build a wheel of it, name the folder of that with --wheels (for a server, --env-wheels), and require its version"
)
_OTHER_SOURCES = {"git": "repository of git", "path": "path", "url": "URL", "workspace": "workspace"}
_DYNAMIC = (
    "its dependencies are dynamic, so only its build backend knows them; list them under 'dependencies' in "
    "[project], or in a requirements.txt, and name that"
)


def _direct_reference(requirements: Iterable[Requirement]) -> str:
    """Why requirements cannot be locked that name a file instead of a version: no index has exactly that file."""
    return next((f"it takes '{one.name}' from {one.url}; {_WHEEL}" for one in requirements if one.url), "")


def _of_requirements(file: Path, text: str) -> Declaration:
    lines = list(_included_lines(file, text, set()))
    found: list[Requirement] = []
    constraints: list[Requirement] = []
    options: list[tuple[str, str, Path]] = []
    unlockable, has_options = "", False
    editable: tuple[str, str, str] | None = None
    for line in lines:
        given = parse_options(line.text)
        options += [(name, value, line.file.parent) for name, value in given]
        if given:
            has_options |= not any(name in INDEX_OPTIONS | _INCLUDED | _CONSTRAINTS for name, _ in given)
        else:
            has_options |= " --" in line.text
            with suppress(InvalidRequirement):
                requirement = Requirement(line.text.partition(" --")[0])
                (constraints if line.is_constraint else found).append(requirement)
                continue
            has_options = True
        edited = [value for name, value in given if name in _EDITABLE]
        if edited or not given:
            unlockable = unlockable or f"'{line.text}' in {line.file} is not a version of a package; {_WHEEL}"
        if edited:
            editable = editable or (line.place, line.raw, edited[0])
    return Declaration(
        file=file,
        text="\n".join([text, *(line.text for line in lines if line.file != file)]),
        requirements=tuple(found),
        constraints=tuple(constraints),
        indexes=indexes_of_options(options),
        has_options=has_options,
        unlockable=unlockable or _direct_reference(found),
        editable=editable,
    )


_PYTHON_ENV_LINE = re.compile(
    r"(?P<key>python|build_dependencies|dependencies)\s*:\s*(?P<quote>['\"]?)(?P<value>.*)(?P=quote)"
    r"|\s*-\s+(?P<mark>['\"]?)(?P<item>.+)(?P=mark)"
)
_VERSION_TO_BUILD_WITH = re.compile(r"(?!pip\b)[A-Za-z0-9._-]+\s*[=<>!~].*")


def _of_python_env(file: Path, text: str) -> Declaration:
    """MLflow's file: `python: 3.11.7`, and lists `build_dependencies`, which MLflow installs first, and `dependencies`.

    Any other patch release of Python counts as well: objects that were pickled with code need the same minor version.
    Of what is installed first, versions count, such as a setuptools that has `pkg_resources`; pip itself is not needed.
    The few lines that MLflow writes are read here: a reader of YAML would be a dependency of each server.
    """
    python, dependencies, key = "", [], ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _PYTHON_ENV_LINE.fullmatch(line.rstrip())
        if match is None or (match["item"] and not key):
            raise ConfigError(
                f"{file} is invalid: '{line.strip()}' is neither 'python', 'build_dependencies' or 'dependencies' nor "
                "an item of one of these lists; correct it, or name a requirements.txt in its place"
            )
        if match["item"]:
            if key == "dependencies" or _VERSION_TO_BUILD_WITH.fullmatch(match["item"]):
                dependencies.append(match["item"])
        elif match["key"] == "python":
            python, key = match["value"], ""
        elif match["value"]:
            raise ConfigError(f"{file} is invalid: '{line.strip()}' is not a list with an item a line")
        else:
            key = match["key"]
    declaration = _of_requirements(file, "\n".join(dependencies))
    minor = ".".join(python.split(".")[:2])
    try:
        required = SpecifierSet(f"=={minor}.*" if minor else "")
    except InvalidSpecifier:
        raise ConfigError(f"{file} is invalid: '{python}' is not a version of Python") from None
    return replace(declaration, text=f"{text}\n{declaration.text}", requires_python=required)


class _Line(NamedTuple):
    """A line of a requirements file; a constraint limits a version without requiring the package."""

    text: str
    file: Path
    place: str
    raw: str
    is_constraint: bool


def _included_lines(file: Path, text: str, seen: set[Path], *, is_constraint: bool = False) -> Iterator[_Line]:
    """The lines of a requirements file with those of the files that it includes, which are relative to it."""
    seen.add(file)
    for number, raw, line in _logical_lines(text):
        yield _Line(line, file, f"{file}:{number}", raw, is_constraint)
        for name, value in parse_options(line):
            included = file.parent / value
            if name in _INCLUDED | _CONSTRAINTS and "://" not in value and included not in seen:
                content = included.read_text(encoding="utf-8-sig")
                constrains = is_constraint or name in _CONSTRAINTS
                yield from _included_lines(included, content, seen, is_constraint=constrains)


def _logical_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Lines that end where no backslash is: number of the first one, as it is written, and without a comment."""
    raw, first = "", 1
    for number, line in enumerate((*text.splitlines(), ""), 1):
        first, raw = (number if not raw else first), raw + line
        if line.endswith("\\"):
            raw = f"{raw[:-1]} "
            continue
        if found := re.sub(r"(^|\s)#.*", "", raw).strip():
            yield first, raw.strip(), found
        raw = ""


def _pinned_requirements(declaration: Declaration, python: str) -> list[Pin] | None:
    if not declaration.is_requirements:
        return None
    pins = []
    for _, _, line in _logical_lines(declaration.text):
        options = parse_options(line)
        if options and all(name in INDEX_OPTIONS for name, _ in options):
            continue  # pip-compile writes them into its output
        match = _PINNED.fullmatch(line)
        if match is None:
            return None
        requirement = Requirement(match["requirement"])
        if _applies(requirement, python):
            version = str(requirement.specifier).removeprefix("==")
            pins.append(Pin(str(canonicalize_name(requirement.name)), version, tuple(_HASH.findall(match["hashes"]))))
    return sorted(pins, key=lambda pin: pin.name)


def _applies(requirement: Requirement, python: str) -> bool:
    values = {"python_version": ".".join(python.split(".")[:2]), "python_full_version": python, "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(values)


def _require_current(declaration: Declaration, lock: ForeignLock, pins: list[Pin], python: str) -> None:
    """Reject a lock that lacks a required package, has another version of it, or was written for other packages."""
    versions = {str(canonicalize_name(pin.name)): pin.version for pin in pins}
    overridden = {canonicalize_name(one.name) for one in declaration.overrides if _applies(one, python)}
    limits = (*declaration.overrides, *declaration.constraints)
    required = [
        *(one for one in declaration.requirements if canonicalize_name(one.name) not in overridden),
        *(one for one in limits if canonicalize_name(one.name) in versions),
    ]
    for requirement in (one for one in required if _applies(one, python)):
        version = versions.get(canonicalize_name(requirement.name))
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        has = f"it has {requirement.name} {version}" if version else f"it has no {requirement.name}"
        raise _stale(declaration, lock, f"requires '{requirement}': {has}")
    recorded = lock.requirements
    if recorded is None or declaration.is_lock or declaration.unlockable:
        return
    now, then = _extras(declaration.requirements, python), _extras(recorded, python)
    for name in sorted({*now, *then}):
        if now.get(name) != then.get(name):
            what = f"requires '{_spelled(name, now[name])}'" if name in now else f"does not require '{name}'"
            before = f"for '{_spelled(name, then[name])}'" if name in then else "without it"
            raise _stale(declaration, lock, f"{what}: it was written {before}")


def _stale(declaration: Declaration, lock: ForeignLock, what: str) -> StaleLockError:
    return StaleLockError(
        f"{lock.path} does not match {declaration.file}, which {what}; update it with `{declaration.lock_command}`"
    )


def _extras(requirements: Iterable[Requirement], python: str) -> dict[str, frozenset[str]]:
    """The extras of each package that is required for a version of Python."""
    found: dict[str, frozenset[str]] = {}
    for requirement in requirements:
        if _applies(requirement, python):
            name = str(canonicalize_name(requirement.name))
            found[name] = found.get(name, frozenset()) | {str(canonicalize_name(one)) for one in requirement.extras}
    return found


def _spelled(name: str, extras: frozenset[str]) -> str:
    return f"{name}[{','.join(sorted(extras))}]" if extras else name
