"""Resolving a declaration into a lock, with uv.

uv writes what its own commands write: `model.py.lock` for a script, and `pylock.toml` otherwise, valid for all
platforms and versions of Python that the declaration allows.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    *,
    is_upgrade: bool = False,
) -> Iterator[Path]:
    """A new lock of a declaration, in a temporary folder: for versions of Python, or for one if nothing suits them all.

    uv keeps versions of an existing lock where they fit, unless it *is_upgrade*.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as scratch:
        resolver = Resolver(declaration, Path(scratch), base, options)
        for old in lock_candidates(declaration.file):
            if old.is_file() and not is_upgrade:
                shutil.copy2(old, scratch)
        others = versions & SpecifierSet(f"!={base.minor}.*")
        if others.is_unsatisfiable() or not first_minor(others):
            yield resolver.resolve_for_one()
            return
        try:
            lock = resolver.resolve()
        except ExecutionEnvironmentError as error:
            if _UNSATISFIABLE not in error.message:
                raise
            # The packages may have no versions that suit every Python, but this one.
            lock = resolver.resolve_for_one()
            others_text = versions or "the newer ones"
            options.progress(f"the lock is for Python {base.minor} alone: nothing suits all of {others_text}")
        yield lock


@dataclass(frozen=True, slots=True)
class Resolver:
    """Writes the lock of a declaration into a folder, which may have an earlier one."""

    declaration: Declaration
    folder: Path
    base: BaseInterpreter
    options: InstallOptions

    def resolve(self) -> Path:
        """Write the lock for all versions of Python that the declaration allows; returns its path."""
        declaration, target = self.declaration, self.folder / "pylock.toml"
        if declaration.is_script:
            return self._lock_model(_with_absolute_paths(declaration))
        source = declaration.file.absolute()
        if declaration.file.name == PYTHON_ENV:  # a format that uv does not read
            source = _write_lines(self.folder / "requirements.in", declaration.requirements)
        self._run([*PYLOCK_COMMAND, "--universal", *self._limits(), "-o", str(target), str(source)])
        _complete_pylock(target, declaration)
        return target

    def resolve_for_one(self) -> Path:
        """The same for the minor version of the interpreter alone: packages need not suit any other Python."""
        declaration, python = self.declaration, f'requires-python = "=={self.base.minor}.*"'
        if declaration.is_script:
            block = _with_absolute_paths(declaration)
            found = _REQUIRES.search(block)
            return self._lock_model(_REQUIRES.sub(python, block, count=1) if found else f"{python}\n{block}")
        if declaration.has_options:  # which a script cannot have
            return self.resolve()
        # `uv pip compile` has no upper bound, so as a script.
        target, script = self.folder / "pylock.toml", self.folder / "declared.py"
        known = open_foreign_lock(target).pins(self.base.version) if target.is_file() else []
        parts = [
            *(python, _list("dependencies", declaration.requirements), "[tool.uv]"),
            _list(
                "constraint-dependencies", [*declaration.constraints, *(f"{pin.name}=={pin.version}" for pin in known)]
            ),
            _list("override-dependencies", declaration.overrides),
            *_assignments(declaration.indexes.assigned),
        ]
        try:
            self._lock_script("\n".join(parts), script)
        except ExecutionEnvironmentError:
            if not known:
                raise
            # Not all versions of the earlier lock fit.
            target.unlink()
            return self.resolve_for_one()
        export = ["export", "--script", str(script), "--frozen", "--format=pylock.toml", "--no-header", "--quiet"]
        self._run([*export, "-o", str(target)])
        _complete_pylock(target, declaration)
        return target

    def _lock_model(self, block: str) -> Path:
        """Lock the script of a model, and name files in place of their addresses, as in a `pylock.toml`.

        Entries of PyPI stay as uv writes them. uv resolves the others again, and keeps their versions.
        """
        lock = self._lock_script(block, self.folder / self.declaration.file.name)
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

    def _lock_script(self, block: str, script: Path) -> Path:
        """Lock a script of a block alone: uv must not leave half a lock beside the model's own script."""
        lines = "".join(f"# {line}\n" if line else "#\n" for line in block.splitlines())
        script.write_text(f"# /// script\n{lines}# ///\n", encoding="utf-8")
        self._run(["lock", "--script", str(script)])
        return script.with_name(f"{script.name}.lock")

    def _run(self, arguments: list[str]) -> None:
        file, options = self.declaration.file, replace(self.options, indexes=self.declaration.indexes)
        if self.declaration.unlockable:
            raise ExecutionEnvironmentError(f"cannot lock {file}: {self.declaration.unlockable}")
        if arguments[0] != "export":
            options.progress(f"resolving the requirements of {file.name} for Python {self.base.minor}")
        run_uv(arguments, file.name, file, self.base.executable, options)

    def _limits(self) -> Iterator[str]:
        """Options with the constraints and overrides of a project, which `uv pip compile` does not read from it."""
        if self.declaration.is_requirements:
            return
        if self.declaration.constraints:
            yield f"--constraint={_write_lines(self.folder / 'constraints.txt', self.declaration.constraints)}"
        if self.declaration.overrides:
            yield f"--override={_write_lines(self.folder / 'overrides.txt', self.declaration.overrides)}"


def _write_lines(file: Path, lines: Iterable[object]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def _list(key: str, values: Iterable[object]) -> str:
    return f"{key} = {json.dumps(list(map(str, values)))}"


def _assignments(assigned: Mapping[str, PackageIndex]) -> Iterator[str]:
    """The tables of `[tool.uv]` that assign packages to indexes."""
    for index in {one.name: one for one in assigned.values()}.values():
        kind = 'format = "flat"\n' if index.is_flat else ""
        yield f"[[tool.uv.index]]\nname = {json.dumps(index.name)}\nurl = {json.dumps(index.url)}"
        yield f"{kind}explicit = true"
    yield "[tool.uv.sources]"
    for package, index in assigned.items():
        yield f"{json.dumps(package)} = {{ index = {json.dumps(index.name)} }}"


def _complete_pylock(lock: Path, declaration: Declaration) -> None:
    """Write into a `pylock.toml` what it was resolved from, and names of files in place of their addresses.

    PEP 751 leaves the table `tool` to tools. Addresses are those of this machine's indexes, which others may not have.
    """
    text = _URL.sub(lambda match: f"path = {json.dumps(file_name(match[1]))}", lock.read_text(encoding="utf-8"))
    lines = "".join(f"    {json.dumps(str(one))},\n" for one in declaration.requirements)
    lock.write_text(f"{_INDEX.sub('', text)}\n[tool.naiad]\nrequirements = [\n{lines}]\n", encoding="utf-8")


def resolve_into_environment(
    file: Path, requirements: Sequence[str], base: BaseInterpreter, options: InstallOptions
) -> list[PackageFile]:
    """The wheels that uv would install into the environment of *base*, beside what it has.

    Wheels only: building a package runs its code, and gives a different file each time.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-resolve-") as folder:
        listed = _write_lines(Path(folder, "requirements.txt"), requirements)
        arguments = ["pip", "install", "--dry-run", "--only-binary=:all:", "-r", str(listed)]
        lines = run_uv(arguments, file.name, file, base.executable, options)
    added = {match[1]: match[2] for match in map(_ADDED.fullmatch, lines) if match is not None}
    return locate_files(added, file, base, options)


def _with_absolute_paths(declaration: Declaration) -> str:
    """The block, with the paths of indexes as they are for a script in another folder.

    Names of indexes and packages stay as they are, also where a folder has the same name.
    """

    def absolute(match: re.Match[str]) -> str:
        text: str = match[0][1:-1] if match[0].startswith("'") else json.loads(match[0])
        return json.dumps(absolute_place(text, declaration.file.parent), ensure_ascii=False)

    return _INDEX_VALUE.sub(lambda match: match[1] + _TOML_STRING.sub(absolute, match[2]), declaration.text)
