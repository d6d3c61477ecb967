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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from naiad.config.model.declared_environment import PYTHON_ENV, lock_candidates
from naiad.core.errors import ExecutionEnvironmentError
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.declared.declaration import Declaration
from naiad_building.declared.package_files import PackageFile, locate_files
from naiad_building.indexes import absolute_place
from naiad_building.uv_program import PYLOCK_COMMAND, InstallOptions, run_uv

__all__ = ["place_lock", "resolve_into", "resolve_into_environment", "resolved_lock"]

_ADDED = re.compile(r" \+ (\S+)==(\S+)")
"""A line of `uv pip install --dry-run`."""
_INDEX_VALUE = re.compile(
    r"""((?<![\w-])(?:url|index-url|find-links|extra-index-url)\s*=\s*)(\[[^\]]*\]|"[^"\\\n]*"|'[^'\n]*')"""
)
"""A key of `[tool.uv]` whose value is an address or a path, or an array of these."""
_TOML_STRING = re.compile(r""""[^"\\\n]*"|'[^'\n]*'""")


@contextmanager
def resolved_lock(
    declaration: Declaration,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
    *,
    is_upgrade: bool = False,
) -> Iterator[Path]:
    """A new lock of a declaration, in a temporary folder.

    uv keeps versions of an existing lock where they fit, unless it *is_upgrade*.

    Raises:
        ExecutionEnvironmentError: If nothing satisfies the requirements.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-lock-") as scratch:
        for old in lock_candidates(declaration.file):
            if old.is_file() and not is_upgrade:
                shutil.copy2(old, scratch)
        yield resolve_into(declaration, Path(scratch), base, options, progress)


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
    """Write the lock of a declaration into a folder; returns its path.

    Raises:
        ExecutionEnvironmentError: If nothing satisfies the requirements; contains the resolver's reason.
    """
    if declaration.unlockable:
        raise ExecutionEnvironmentError(f"cannot lock {declaration.file}: {declaration.unlockable}")
    progress(f"resolving the requirements of {declaration.file.name} for Python {base.minor}")
    if declaration.is_script:
        # A copy with the block alone: uv writes beside the script, and must not leave half a lock there.
        script = folder / declaration.file.name
        script.write_text(_block(_with_absolute_paths(declaration)), encoding="utf-8")
        target = script.with_name(f"{script.name}.lock")
        arguments = ["lock", "--script", str(script)]
    else:
        target = folder / "pylock.toml"
        source = declaration.file.absolute()
        if declaration.file.name == PYTHON_ENV:  # a format that uv does not read
            source = folder / "requirements.in"
            source.write_text("".join(f"{line}\n" for line in declaration.requirements), encoding="utf-8")
        arguments = [*PYLOCK_COMMAND, "--universal", *_limits(declaration, folder), "-o", str(target), str(source)]
    run_uv(
        arguments,
        declaration.file.name,
        declaration.file,
        base.executable,
        replace(options, indexes=declaration.indexes),
        progress,
    )
    if not declaration.is_script:
        _record_requirements(target, declaration)
    return target


def _record_requirements(lock: Path, declaration: Declaration) -> None:
    """Write into a `pylock.toml` what it was resolved from; PEP 751 leaves the table `tool` to tools."""
    lines = "".join(f"    {json.dumps(str(one))},\n" for one in declaration.requirements)
    with lock.open("a", encoding="utf-8") as file:
        file.write(f"\n[tool.naiad]\nrequirements = [\n{lines}]\n")


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
    """The wheels that uv would install into an environment, beside what it has.

    Wheels only: building a package runs its code, and gives a different file each time.

    Args:
        file: The file that declares the requirements, for errors.
        requirements: Lines of a requirements file.
        base: The interpreter of the environment.
        options: Where packages come from.
        progress: Called with a line for each step.

    Raises:
        ExecutionEnvironmentError: If nothing satisfies the requirements; contains uv's reason.
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


def _block(content: str) -> str:
    lines = "".join(f"# {line}\n" if line else "#\n" for line in content.splitlines())
    return f"# /// script\n{lines}# ///\n"
