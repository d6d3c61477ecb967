"""Writing the first files of something into a project's folder, without ever replacing one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from naiad.errors import ScaffoldError

__all__ = ["Scaffold", "check_name", "identifier", "write"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """What is to be written.

    Attributes:
        files: Contents by path below the project's folder.
        commands: What to run next, in order.
        notes: What was taken for granted, to be checked by the reader.
    """

    files: Mapping[str, str | bytes]
    commands: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


def check_name(name: str, what: str) -> None:
    """Refuse a name that no folder of a repository may have.

    Raises:
        ScaffoldError: With the rule.
    """
    if not _NAME.fullmatch(name):
        raise ScaffoldError(
            f"'{name}' is no name of a {what}: use letters, digits, '_', '-' and '.', and none of the last two first"
        )


def identifier(name: str) -> str:
    """A name as it may stand in one of a Python module."""
    return re.sub(r"\W", "_", name)


def write(scaffold: Scaffold, root: Path) -> list[Path]:
    """Write all files, or none if one of them is there already; the files, in order.

    Raises:
        ScaffoldError: If it cannot be done.
    """
    targets = {root / name: content for name, content in scaffold.files.items()}
    existing = [str(path) for path in targets if path.exists() or path.is_symlink()]
    if existing:
        raise ScaffoldError(
            f"nothing was written, as these are there already: {', '.join(existing)}; "
            "choose another name, or another folder with --directory"
        )
    for path, content in targets.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x": what somebody wrote since is not replaced either.
            with path.open("xb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
        except OSError as error:
            raise ScaffoldError(f"cannot write {path}: {error.strerror or error}") from error
    return list(targets)
