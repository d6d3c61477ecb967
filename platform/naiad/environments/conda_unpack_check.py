"""Whether the files of an environment's folder have the path of another folder: it was unpacked or copied by hand.

An archive of conda-pack is complete when its `bin/conda-unpack` has replaced a placeholder, or the path of the folder
that was packed, by the path of the new one. The store does that for archives; for a folder the user has to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_UNPACK = "bin/conda-unpack"
_RECORDS = re.compile(r"^_prefix_records = (\[.*?^\])", re.MULTILINE | re.DOTALL)
_LOOKED_AT = 16  # files that are read: `conda-unpack` changes all of them or none
_READ = 4 << 20
_SCRIPTS = 500
_SHEBANG = re.compile(rb"#! *(/[^ \n\r\t]*/bin)/(python[0-9.]*)[ \r\n]")


def explain_unfinished_unpacking(prefix: Path) -> str:
    """Why a folder cannot be used before its `conda-unpack` has run, with what to do; empty if it can."""
    for name, placeholder in _records(prefix / _UNPACK):
        if placeholder == str(prefix):
            continue
        try:
            with (prefix / name).open("rb") as file:
                is_unfinished = placeholder.encode() in file.read(_READ)
        except OSError:
            continue
        if is_unfinished:
            return (
                f"it was unpacked from an archive of conda-pack whose {_UNPACK} has not run, so that files such as "
                f"{name} have {placeholder} in place of its path; run {prefix / _UNPACK}, or name the archive"
            )
    return ""


def explain_moved_scripts(prefix: Path) -> str:
    """Which scripts of an environment's folder cannot be started, with the cause; empty if all can."""
    for script in _files(prefix / "bin"):
        try:
            with script.open("rb") as file:
                found = _SHEBANG.match(file.read(1024))
        except OSError:
            continue
        if found is None:
            continue
        folder, program = found[1].decode(errors="replace"), found[2].decode()
        if (prefix / "bin" / program).exists() and not Path(folder, program).exists():
            return (
                f"programs in {script.parent} such as {script.name} cannot be started: they need {folder}/{program}, "
                f"which does not exist; the environment was made for the folder {folder.removesuffix('/bin')} "
                "(conda-pack --dest-prefix, or a copy): put it there, or make it again where it is"
            )
    return ""


def _records(script: Path) -> list[tuple[str, str]]:
    """Path and placeholder of the first files that `conda-unpack` changes, texts before others."""
    try:
        found = _RECORDS.search(script.read_text(encoding="utf-8"))
        records = [] if found is None else ast.literal_eval(found[1])
        records = sorted(records, key=lambda record: record[2] != "text")[:_LOOKED_AT]
        return [(str(path), str(placeholder)) for path, placeholder, _ in records]
    except (OSError, ValueError, SyntaxError, TypeError, IndexError, RecursionError, MemoryError):
        return []  # there is none, or it is another program


def _files(folder: Path) -> Iterator[Path]:
    try:
        found = sorted(folder.iterdir())[:_SCRIPTS]
    except OSError:
        return
    yield from (path for path in found if path.is_file() and not path.is_symlink())
