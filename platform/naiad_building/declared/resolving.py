"""Resolving a declaration into a lock: with uv where it is installed, else with pip.

uv writes what its own commands write: `model.py.lock` for a script, and `pylock.toml` otherwise, valid for all
platforms and versions of Python that the declaration allows. pip resolves for one interpreter, which its
`pylock.toml` states.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from naiad.config.model.declared_environment import PYTHON_ENV, lock_candidates
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.real_paths import real_path
from naiad.environments.archives.manifest import host_platform
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.declared.declaration import Declaration
from naiad_building.declared.retrying import with_retries
from naiad_building.indexes import absolute_place
from naiad_building.installers import (
    InstallOptions,
    clean_environ,
    installer_uv,
    pip_command,
    run_installer,
    uv_environ,
    uv_lock_script_command,
    uv_pylock_command,
    uv_settings,
    with_sources,
)
from naiad_building.pip_program import find_pip
from naiad_building.requirements import Requirements

__all__ = ["ResolvedWheel", "place_lock", "resolve_into", "resolve_with_pip", "resolved_lock"]

_INDEX_VALUE = re.compile(
    r"""((?<![\w-])(?:url|index-url|find-links|extra-index-url)\s*=\s*)(\[[^\]]*\]|"[^"\\\n]*"|'[^'\n]*')"""
)
"""A key of `[tool.uv]` whose value is an address or a path, or an array of these."""
_TOML_STRING = re.compile(r""""[^"\\\n]*"|'[^'\n]*'""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedWheel:
    """A wheel that pip would install.

    Attributes:
        name: Name of the package.
        version: Version of the package.
        url: Where it is.
        digest: SHA-256 of the file.
    """

    name: str
    version: str
    url: str
    digest: str


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

    uv keeps versions of an existing lock where they fit, unless it *is_upgrade*; pip takes the newest.

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
        _remove_others(file, target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ExecutionEnvironmentError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _remove_others(file: Path, target: Path) -> None:
    """Remove a lock that would hide the one that was just written. Until then, the old one counts if it still fits."""
    for other in lock_candidates(file):
        if other != target and other.name == f"{file.name}.lock":
            other.unlink(missing_ok=True)


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
    options = replace(options, indexes=declaration.indexes)
    uv = installer_uv(options)
    if reason := declaration.unlockable or (_needs_uv(declaration) if uv is None else ""):
        raise ExecutionEnvironmentError(f"cannot lock {declaration.file}: {reason}")
    progress(f"resolving the requirements of {declaration.file.name} for Python {base.minor}")
    if uv is None:
        lock = with_retries(lambda: _resolve_with_pip(declaration, folder, base, options, progress), progress)
    else:
        lock = with_retries(lambda: _resolve_with_uv(uv, declaration, folder, base, options, progress), progress)
    if lock.suffix == ".toml":
        _record_requirements(lock, declaration)
    return lock


def _needs_uv(declaration: Declaration) -> str:
    """What pip cannot express; empty for nothing."""
    if declaration.indexes.assigned:
        what = "[tool.uv.sources] takes packages from one index alone"
    elif declaration.overrides:
        what = "[tool.uv] has override-dependencies"
    else:
        return ""
    return f"{what}, which pip cannot; install uv: `pip install naiad[uv]`"


def _record_requirements(lock: Path, declaration: Declaration) -> None:
    """Write into a `pylock.toml` what it was resolved from; PEP 751 leaves the table `tool` to tools."""
    lines = "".join(f"    {json.dumps(str(one))},\n" for one in declaration.requirements)
    with lock.open("a", encoding="utf-8") as file:
        file.write(f"\n[tool.naiad]\nrequirements = [\n{lines}]\n")


def _resolve_with_uv(
    uv: Path,
    declaration: Declaration,
    folder: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> Path:
    settings = uv_settings(options)
    environ = uv_environ(clean_environ(os.environ), settings)
    if declaration.is_script:
        # A copy with the block alone: uv writes beside the script, and must not leave half a lock there.
        script = folder / declaration.file.name
        script.write_text(_block(_with_absolute_paths(declaration)), encoding="utf-8")
        command = [*uv_lock_script_command(uv, base.executable, settings), "--script", str(script)]
        target = script.with_name(f"{script.name}.lock")
    else:
        target = folder / "pylock.toml"
        source = declaration.file.absolute()
        if declaration.file.name == PYTHON_ENV:  # a format that uv does not read
            source = folder / "requirements.in"
            source.write_text(_lines(declaration), encoding="utf-8")
        command = [
            *uv_pylock_command(uv, base.executable, settings),
            *_limits(declaration, folder),
            "-o",
            str(target),
            str(source),
        ]
    _run(declaration.file, with_sources(command, options, uv), environ, progress)
    return target


def _resolve_with_pip(
    declaration: Declaration,
    folder: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> Path:
    if declaration.is_requirements:
        requirements = f"-r {real_path(declaration.file)}\n"  # by path, because included files are relative to it
    else:
        requirements = _lines(declaration)
        requirements += "".join(f"{option}\n" for option in _limits(declaration, folder))
    found = resolve_with_pip(declaration.file, requirements, folder, base, options, progress)
    target = folder / "pylock.toml"
    target.write_text(_pylock(found, base), encoding="utf-8")
    return target


def _lines(declaration: Declaration) -> str:
    """The requirements of a declaration as those of a requirements file."""
    return "".join(f"{line}\n" for line in declaration.requirements)


def _limits(declaration: Declaration, folder: Path) -> Iterator[str]:
    """Options with the constraints and overrides of a project, which `uv pip compile` does not read from it."""
    if declaration.is_requirements:
        return
    for option, lines in (("--constraint", declaration.constraints), ("--override", declaration.overrides)):
        if lines:
            file = folder / f"{option.removeprefix('--')}s.txt"
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            yield f"{option}={file}"


def resolve_with_pip(
    file: Path,
    requirements: str,
    folder: Path,
    base: BaseInterpreter,
    options: InstallOptions,
    progress: Callable[[str], None],
    *,
    keeps_installed: bool = False,
) -> list[ResolvedWheel]:
    """The wheels that pip would install, sorted by name.

    Args:
        file: The file that declares the requirements, for errors.
        requirements: Lines of a requirements file.
        folder: A folder for temporary files.
        base: The interpreter to resolve for.
        options: Sources of packages.
        progress: Called with a line for each step.
        keeps_installed: Whether packages that the interpreter has count as installed.

    Raises:
        ExecutionEnvironmentError: If nothing satisfies the requirements; contains pip's reason.
    """
    report, listed = folder / "report.json", folder / "requirements.txt"
    listed.write_text(requirements, encoding="utf-8")
    command = [
        *pip_command(find_pip(base), base.executable, "install"),
        # Wheels only: building a package runs its code, and gives a different file each time.
        *("--dry-run", "--only-binary=:all:", "--progress-bar=off", "--report", str(report), "-r", str(listed)),
        *(() if keeps_installed else ("--ignore-installed",)),
    ]
    command = with_sources(command, options, None)
    # Debian's Python forbids installing into it. A dry run installs nothing.
    _run(file, command, {**clean_environ(os.environ), "PIP_BREAK_SYSTEM_PACKAGES": "1"}, progress)
    items: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = [
        ResolvedWheel(
            name=str(item["metadata"]["name"]).lower().replace("_", "-"),
            version=item["metadata"]["version"],
            url=item["download_info"]["url"],
            digest=item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", ""),
        )
        for item in items
    ]
    return sorted(found, key=lambda one: one.name)


def _run(
    file: Path,
    command: list[str],
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> None:
    requirements = Requirements("", file, complete=False, hashed=False)
    run_installer(file.name, requirements, command, dict(environ), progress, has_file=False)


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


def _pylock(found: Sequence[ResolvedWheel], base: BaseInterpreter) -> str:
    """The text of `pylock.toml` (PEP 751) for wheels."""
    system, _, machine = host_platform().partition("-")
    lines = [
        'lock-version = "1.0"',
        f"environments = [\"sys_platform == '{system}' and platform_machine == '{machine}'\"]",
        f'requires-python = "=={base.minor}.*"',
        'created-by = "naiad"',
    ]
    for one in found:
        hashes = f"{{ sha256 = {json.dumps(one.digest)} }}"
        file = unquote(one.url.rpartition("/")[2])
        lines += [
            "",
            "[[packages]]",
            f"name = {json.dumps(canonicalize_name(one.name))}",
            f"version = {json.dumps(one.version)}",
            f"wheels = [{{ name = {json.dumps(file)}, url = {json.dumps(one.url)}, hashes = {hashes} }}]",
        ]
    return "\n".join(lines) + "\n"
