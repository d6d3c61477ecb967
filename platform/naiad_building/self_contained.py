"""Creating a self-contained copy of a venv, or of a Python with packages, for packing.

A venv has packages and a link to an interpreter elsewhere. The copy contains that interpreter and the packages. It is
temporary: `pack` deletes it after writing the archive.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.bytecode import compile_environment
from naiad.environments.installed_packages import site_folders
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad_building.base_interpreter import BaseInterpreter, copy_base, inspect_base
from naiad_building.conda_meta import record_interpreter, write_history
from naiad_building.relocation import relocate_binaries, relocate_texts

__all__ = ["make_self_contained", "packages_folder"]

# Parts of the venv itself. `lib` is copied package by package.
_NOT_COPIED = frozenset({"bin", "lib", "lib64", "include", "pyvenv.cfg", "conda-meta", "info", ".gitignore", ".lock"})
# Activation scripts, and links to the interpreter.
_NOT_SCRIPTS = ("activate", "deactivate", "python", "pydoc", "idle", "2to3")
# virtualenv's patch of setuptools, which belongs to the original venv.
_NOT_PACKAGES = frozenset({"_virtualenv.py", "_virtualenv.pth", "__pycache__"})


def make_self_contained(environment: Path, prefix: Path) -> BaseInterpreter:
    """Create a self-contained copy of an environment in the empty folder *prefix*; returns its base interpreter."""
    python = find_interpreter_in(environment)
    if python is None or not python.exists():
        raise ExecutionEnvironmentError(
            f"cannot pack {environment}: it has no interpreter that runs (looked for {environment}/bin/python); "
            "an environment is a conda environment, a venv, or a Python with its packages"
        )
    base = inspect_base(python)
    if base.is_system and base.prefix == environment:
        raise ExecutionEnvironmentError(
            f"cannot pack {environment}: it is the system's Python; create a venv and pack that"
        )
    copy_base(base, prefix)
    origins = (environment, base.prefix) if not base.is_system else (environment,)
    target = prefix / base.stdlib.relative_to(base.prefix)
    packages = packages_folder(base, target)
    compile_environment(prefix / "bin" / "python", prefix, base.cache_tag)
    record_interpreter(prefix, base.version)
    for folder in _site_folders(environment, base):
        _reject_external_code(environment, folder)
        _copy_packages(folder, packages)
    _copy_rest(environment, prefix)
    relocate_texts((path for path in (prefix / "bin").iterdir() if path.is_file()), environment, prefix)
    relocate_binaries(prefix, (*origins, prefix))
    compile_environment(prefix / "bin" / "python", prefix, base.cache_tag)
    write_history(prefix, base.version)
    return base


def packages_folder(base: BaseInterpreter, stdlib: Path) -> Path:
    """The folder of packages for an interpreter whose standard library is copied to *stdlib*."""
    if base.is_system and not base.stdlib.joinpath("site-packages").is_dir():
        return stdlib.parent / "python3" / "dist-packages"  # Debian's layout
    return stdlib / "site-packages"


def _site_folders(environment: Path, base: BaseInterpreter) -> Iterator[Path]:
    """Folders of packages, lowest priority first."""
    if (environment / "pyvenv.cfg").is_file() and _uses_system_packages(environment):
        yield from site_folders(base.prefix)
    yield from site_folders(environment)


def _uses_system_packages(venv: Path) -> bool:
    for line in (venv / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "include-system-site-packages":
            return value.strip().lower() == "true"
    return False


def _reject_external_code(environment: Path, folder: Path) -> None:
    """Reject packages installed with --editable and .pth files with outside folders: their code cannot be packed."""
    for file in sorted((*folder.glob("*.pth"), *folder.glob("*.egg-link"))):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            path = line.strip()
            if path.startswith("/") and not Path(path).resolve().is_relative_to(environment.resolve()):
                raise ExecutionEnvironmentError(
                    f"cannot pack {environment}: {file.name} refers to code in {path}, outside of it; install that "
                    "package without --editable"
                )
    for finder in sorted(folder.glob("__editable__*.py")):
        raise ExecutionEnvironmentError(
            f"cannot pack {environment}: {finder.name} refers to code outside of it; install that package without "
            "--editable"
        )


def _copy_packages(source: Path, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        top = Path(folder) == source
        return {name for name in names if name == "__pycache__" or (top and name in _NOT_PACKAGES)}

    shutil.copytree(source, target, symlinks=True, ignore=left_out, dirs_exist_ok=True)


def _copy_rest(environment: Path, prefix: Path) -> None:
    """Copy scripts, and data folders that packages install beside `lib`."""
    for path in sorted((environment / "bin").iterdir()) if (environment / "bin").is_dir() else ():
        if not path.name.lower().startswith(_NOT_SCRIPTS) and path.is_file():
            shutil.copy2(path, prefix / "bin" / path.name)
    for path in sorted(environment.iterdir()):
        if path.name not in _NOT_COPIED and path.is_dir() and not path.is_symlink():
            shutil.copytree(path, prefix / path.name, symlinks=True, dirs_exist_ok=True)
