"""Resolving a declaration into a lock, with uv.

uv writes what its own commands write: `model.py.lock` for a script, and `pylock.toml` otherwise, valid for all
platforms and versions of Python that the declaration allows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.config.model.declared_environment import PYTHON_ENV, lock_candidates
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.file_digest import file_digest
from naiad.sources.interpreters.discovery import first_minor
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.declared.declaration import Declaration
from naiad_building.declared.package_files import PackageFile, locate_files
from naiad_building.indexes import PackageIndex, absolute_place
from naiad_building.lockfiles import file_name, open_foreign_lock
from naiad_building.uv_program import PYLOCK_COMMAND, InstallOptions, run_uv

__all__ = ["place_lock", "resolve_for_one", "resolve_into", "resolve_into_environment", "resolved_lock"]

_ADDED = re.compile(r" \+ (\S+)==(\S+)")
"""A line of `uv pip install --dry-run`."""
_UNSATISFIABLE = "No solution found"
_REQUIRES = re.compile(r"^requires-python\s*=.*$", re.MULTILINE)
_URL = re.compile(r'(?<![\w-])url = "([^"]*)"')
_INDEX = re.compile(r'^index = "[^"]*"\n', re.MULTILINE)
_INDEX_VALUE = re.compile(
    r"""((?<![\w-])(?:url|index-url|find-links|extra-index-url)\s*=\s*)(\[[^\]]*\]|"[^"\\\n]*"|'[^'\n]*')"""
)
"""A key of `[tool.uv]` whose value is an address or a path, or an array of these."""
_TOML_STRING = re.compile(r""""[^"\\\n]*"|'[^'\n]*'""")
_PUBLIC_INDEX = "https://pypi.org/simple"
_REGISTRY = re.compile(r'source = \{ registry = ("[^"]*") \}')
_FILE = re.compile(r'\{ (?:url|path) = ("[^"]*")(, hash)?')


@contextmanager
def resolved_lock(
    declaration: Declaration,
    versions: SpecifierSet,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
    *,
    is_upgrade: bool = False,
) -> Iterator[Path]:
    """A new lock of a declaration, in a temporary folder: for versions of Python, or for one if nothing suits them all.

    uv keeps versions of an existing lock where they fit, unless it *is_upgrade*.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as scratch:
        folder = Path(scratch)
        for old in lock_candidates(declaration.file):
            if old.is_file() and not is_upgrade:
                shutil.copy2(old, folder)
        others = versions & SpecifierSet(f"!={base.minor}.*")
        if others.is_unsatisfiable() or not first_minor(others):
            yield resolve_for_one(declaration, folder, base, options, progress)
            return
        try:
            lock = resolve_into(declaration, folder, base, options, progress)
        except ExecutionEnvironmentError as error:
            if _UNSATISFIABLE not in error.message:
                raise
            # The packages may have no versions that suit every Python, but this one.
            lock = resolve_for_one(declaration, folder, base, options, progress)
            progress(f"the lock is for Python {base.minor} alone: nothing suits all of {versions or 'the newer ones'}")
        yield lock


def place_lock(resolved: Path, file: Path) -> Path:
    """Copy a lock beside its declaration; returns its path.

    Raises:
        ExecutionEnvironmentError: If it cannot be written; the old lock stays.
    """
    target = file.with_name(resolved.name)
    unfinished = file.with_name(f".{resolved.name}.{os.getpid()}")
    try:
        shutil.copyfile(resolved, unfinished)
        unfinished.replace(target)  # in one step, so that no server ever reads half a lock
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ExecutionEnvironmentError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def resolve_into(
    declaration: Declaration,
    folder: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> Path:
    """Write the lock, for all versions of Python, into a folder that may have an earlier one; returns its path."""
    if declaration.is_script:
        return _lock_model(_with_absolute_paths(declaration), declaration, folder, base, options, progress)
    source, target = declaration.file.absolute(), folder / "pylock.toml"
    if declaration.file.name == PYTHON_ENV:  # a format that uv does not read
        source = folder / "requirements.in"
        source.write_text("".join(f"{line}\n" for line in declaration.requirements), encoding="utf-8")
    arguments = [*PYLOCK_COMMAND, "--universal", *_limits(declaration, folder), "-o", str(target), str(source)]
    _run(arguments, declaration, base, options, progress)
    _complete_pylock(target, declaration)
    return target


def resolve_for_one(
    declaration: Declaration,
    folder: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> Path:
    """The same for the minor version of the interpreter alone: packages need not suit any other Python."""
    python = f'requires-python = "=={base.minor}.*"'
    if declaration.is_script:
        block = _with_absolute_paths(declaration)
        block = _REQUIRES.sub(python, block, count=1) if _REQUIRES.search(block) else f"{python}\n{block}"
        return _lock_model(block, declaration, folder, base, options, progress)
    if declaration.has_options:  # which a script cannot have
        return resolve_into(declaration, folder, base, options, progress)
    # `uv pip compile` has no upper bound, so as a script.
    target = folder / "pylock.toml"
    known = open_foreign_lock(target).pins(base.version) if target.is_file() else []
    script, constraints = folder / "declared.py", list(map(str, declaration.constraints))
    tables = [
        _list("constraint-dependencies", [*constraints, *(f"{pin.name}=={pin.version}" for pin in known)]),
        _list("override-dependencies", declaration.overrides),
        *_assignments(declaration.indexes.assigned),
    ]
    block = "\n".join([python, _list("dependencies", declaration.requirements), "[tool.uv]", *tables])
    try:
        _lock_script(block, declaration, script, base, options, progress)
    except ExecutionEnvironmentError:
        if not known:
            raise
        # Not all versions of the earlier lock fit.
        target.unlink()
        return resolve_for_one(declaration, folder, base, options, progress)
    export = ["export", "--script", str(script), "--frozen", "--format=pylock.toml", "--no-header", "--quiet"]
    _run([*export, "-o", str(target)], declaration, base, options, lambda _: None)
    _complete_pylock(target, declaration)
    return target


def _assignments(assigned: Mapping[str, PackageIndex]) -> Iterator[str]:
    """The tables of `[tool.uv]` that assign packages to indexes."""
    for index in {one.name: one for one in assigned.values()}.values():
        kind = 'format = "flat"\n' if index.is_flat else ""
        yield f"[[tool.uv.index]]\nname = {json.dumps(index.name)}\nurl = {json.dumps(index.url)}"
        yield f"{kind}explicit = true"
    yield "[tool.uv.sources]"
    for package, index in assigned.items():
        yield f"{json.dumps(package)} = {{ index = {json.dumps(index.name)} }}"


def _lock_script(
    block: str,
    declaration: Declaration,
    script: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> Path:
    """Lock a script of a block alone: uv must not leave half a lock beside the model's own script."""
    lines = "".join(f"# {line}\n" if line else "#\n" for line in block.splitlines())
    script.write_text(f"# /// script\n{lines}# ///\n", encoding="utf-8")
    _run(["lock", "--script", str(script)], declaration, base, options, progress)
    return script.with_name(f"{script.name}.lock")


def _lock_model(
    block: str,
    declaration: Declaration,
    folder: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> Path:
    """Lock the script of a model, and name files in place of their addresses, as in a `pylock.toml`.

    Entries of PyPI stay as uv writes them. uv resolves the others again, and keeps their versions.
    """
    lock = _lock_script(block, declaration, folder / declaration.file.name, base, options, progress)
    lines, registry = [], _PUBLIC_INDEX
    for written in lock.read_text(encoding="utf-8").splitlines(keepends=True):
        if written.startswith("source = "):
            found = _REGISTRY.match(written)
            registry = _PUBLIC_INDEX if found is None else json.loads(found[1])
        line = _REGISTRY.sub(f'source = {{ registry = "{_PUBLIC_INDEX}" }}', written)
        if registry != _PUBLIC_INDEX and (file := _FILE.search(line)) is not None:
            place = json.loads(file[1])
            # uv notes no digest of a wheel in a folder.
            digest = file[2] or f', hash = "sha256:{file_digest(lock.parent / registry / place)}"'
            line = f"{line[: file.start()]}{{ path = {json.dumps(file_name(place))}{digest}{line[file.end() :]}"
        lines.append(line)
    lock.write_text("".join(lines), encoding="utf-8")
    return lock


def _run(
    arguments: list[str],
    declaration: Declaration,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> None:
    if declaration.unlockable:
        raise ExecutionEnvironmentError(f"cannot lock {declaration.file}: {declaration.unlockable}")
    progress(f"resolving the requirements of {declaration.file.name} for Python {base.minor}")
    file, chosen = declaration.file, replace(options, indexes=declaration.indexes)
    run_uv(arguments, file.name, file, base.executable, chosen, progress)


def _list(key: str, values: Iterable[object]) -> str:
    return f"{key} = {json.dumps(list(map(str, values)))}"


def _complete_pylock(lock: Path, declaration: Declaration) -> None:
    """Write into a `pylock.toml` what it was resolved from, and names of files in place of their addresses.

    PEP 751 leaves the table `tool` to tools. Addresses are those of this machine's indexes, which others may not have.
    """
    text = _URL.sub(lambda match: f"path = {json.dumps(file_name(match[1]))}", lock.read_text(encoding="utf-8"))
    lines = "".join(f"    {json.dumps(str(one))},\n" for one in declaration.requirements)
    lock.write_text(f"{_INDEX.sub('', text)}\n[tool.naiad]\nrequirements = [\n{lines}]\n", encoding="utf-8")


def _limits(declaration: Declaration, folder: Path) -> Iterator[str]:
    """Options with the constraints and overrides of a project, which `uv pip compile` does not read from it."""
    if declaration.is_requirements:
        return
    for option, lines in (("--constraint", declaration.constraints), ("--override", declaration.overrides)):
        if lines:
            file = folder / f"{option.removeprefix('--')}s.txt"
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            yield f"{option}={file}"


def resolve_into_environment(
    file: Path,
    requirements: Sequence[str],
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> list[PackageFile]:
    """The wheels that uv would install into the environment of *base*, beside what it has.

    Wheels only: building a package runs its code, and gives a different file each time.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-resolve-") as folder:
        listed = Path(folder, "requirements.txt")
        listed.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        arguments = ["pip", "install", "--dry-run", "--only-binary=:all:", "-r", str(listed)]
        lines = run_uv(arguments, file.name, file, base.executable, options, progress)
    added = {match[1]: match[2] for match in map(_ADDED.fullmatch, lines) if match is not None}
    return locate_files(added, file, base, options, progress)


def _with_absolute_paths(declaration: Declaration) -> str:
    """The block, with the paths of indexes as they are for a script in another folder.

    Names of indexes and packages stay as they are, also where a folder has the same name.
    """
    folder = declaration.file.parent

    def absolute(match: re.Match[str]) -> str:
        written = match[0]
        text: str = written[1:-1] if written.startswith("'") else json.loads(written)
        return json.dumps(absolute_place(text, folder), ensure_ascii=False)

    return _INDEX_VALUE.sub(lambda match: match[1] + _TOML_STRING.sub(absolute, match[2]), declaration.text)
