"""Writes the first files of a model, backend or recipe into a project's folder; never replaces a file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from naiad.core.errors import ScaffoldError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """Files to write, and what to tell their author."""

    # Contents, by path below the project's folder; a path is that of a file or folder of this machine.
    files: Mapping[str, str | bytes | Path]
    commands: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


def check_name(name: str, what: str) -> None:
    """Reject a name that is not a valid folder name of a repository."""
    if not _NAME.fullmatch(name):
        raise ScaffoldError(
            f"cannot create a {what} named '{name}': a name has letters, digits, '_', '-' and '.', and does not start "
            "with '-' or '.'"
        )


def identifier(name: str) -> str:
    """The name with characters that a Python module's name cannot have replaced by `_`."""
    return re.sub(r"\W", "_", name)


def write(scaffold: Scaffold, root: Path, *, links: bool = False) -> list[Path]:
    """Write all files, or none if one of them exists; returns their paths."""
    targets = {root / name: content for name, content in scaffold.files.items()}
    existing = [str(path) for path in targets if path.exists() or path.is_symlink()]
    if existing:
        raise ScaffoldError(
            f"cannot write: these files exist: {', '.join(existing)}; choose another name, or another folder with "
            "--directory"
        )
    for path, content in targets.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                _place(content, path, links=links)
                continue
            # "x": a file that was created since the check is not replaced either.
            with path.open("xb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        except OSError as error:
            raise ScaffoldError(f"cannot write {path}: {error.strerror or error}") from error
    return list(targets)


def _place(source: Path, target: Path, *, links: bool) -> None:
    if links:
        target.symlink_to(source)
    elif source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
