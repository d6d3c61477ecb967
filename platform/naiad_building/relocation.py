"""Making copied files independent of their original prefix: library search paths and texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from naiad.environments.elf import overwrite_search_path, read_dynamic_section

_LARGEST_TEXT = 4 << 20


def relative_search_path(search_path: str, prefixes: tuple[Path, ...], *, folder: Path, prefix: Path) -> str:
    """A library search path with entries relative to `$ORIGIN`, for a file in *folder* inside *prefix*.

    Entries inside one of *prefixes*, the original locations, become relative. Others and the order stay. Duplicates are
    removed.
    """
    entries = [_relative(entry, prefixes, folder, prefix) for entry in search_path.split(":")]
    return ":".join(dict.fromkeys(entries))


def relocate_binaries(prefix: Path, origins: tuple[Path, ...]) -> None:
    """Make the library search paths of all ELF files below *prefix* relative.

    Changed are entries inside *origins*. *prefix* may be one of them: packages compiled during the build refer to it.

    Raises ExecutionEnvironmentError if a file has no room for the new path.
    """
    for path in _files(prefix):
        section = read_dynamic_section(path)
        if section is None or not section.search_path:
            continue
        new = relative_search_path(section.search_path, origins, folder=path.parent, prefix=prefix)
        if new != section.search_path:
            path.chmod(path.stat().st_mode | 0o200)
            overwrite_search_path(path, section, new)


def relocate_scripts(prefix: Path, origin: Path, final: Path) -> None:
    """Replace *origin* by *final* in the scripts of an environment, which name their interpreter by its path."""
    relocate_texts((path for path in (prefix / "bin").iterdir() if path.is_file()), origin, final)


def relocate_texts(paths: Iterable[Path], origin: Path, prefix: Path) -> None:
    """Replace *origin* by *prefix* in text files. Binary files are skipped."""
    for path in paths:
        if path.is_symlink() or path.stat().st_size > _LARGEST_TEXT:
            continue
        data = path.read_bytes()
        if b"\0" not in data and os.fsencode(origin) in data:
            path.chmod(path.stat().st_mode | 0o200)
            path.write_bytes(data.replace(os.fsencode(origin), os.fsencode(prefix)))


def _relative(entry: str, origins: tuple[Path, ...], folder: Path, prefix: Path) -> str:
    path = Path(os.path.normpath(entry))
    for origin in origins:
        if path.is_absolute() and path.is_relative_to(origin):
            steps = os.path.relpath(prefix / path.relative_to(origin), folder)
            return "$ORIGIN" if steps == "." else f"$ORIGIN/{steps}"
    return entry


def _files(prefix: Path) -> Iterator[Path]:
    paths = (Path(folder, name) for folder, _, names in os.walk(prefix) for name in names)
    return (path for path in paths if not path.is_symlink())
