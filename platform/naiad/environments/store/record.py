"""The record of a store entry: its existence says that the entry is complete.

The record is written last, by an atomic rename, so a process that dies earlier leaves no record. A power failure can
still lose files written before the record, because nothing is flushed: an fsync of thousands of files takes seconds on
a busy disk, at every first start. Instead the record contains the boot id and the total size. After another boot the
size is compared once. A file whose content never reached the disk is empty, so the size differs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.core import json_cache
from naiad.environments.store.access import explained, require_readable
from naiad.sources.interpreters.probe import Interpreter

_FORMAT = 1
RECORD_NAME = "ready.json"  # a folder with this file is a complete entry
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ReadyEntry:
    """One complete entry of the store."""

    digest: str
    prefix: Path
    interpreter: Interpreter
    library_path: Path | None  # folder that its interpreter needs in LD_LIBRARY_PATH, None normally
    bytecode: Path | None  # folder for its bytecode, None if bytecode is beside the sources


def has_record(entry: Path) -> bool:
    """Whether an entry has a record, valid or not. One that another user made for itself alone counts as complete."""
    try:
        (entry / RECORD_NAME).stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def write_record(
    entry: Path,
    *,
    archive: str,
    interpreter: Interpreter,
    prefix: Path,
    needs_library_path: bool,
    has_bytecode: bool,
    size: Sequence[int],
) -> None:
    """Mark an entry as complete. Paths are relative to the entry, so that a store can be moved as a whole.

    Args:
        size: Number of files in the environment, links to files included, and the sum of their sizes.
    """
    record = {
        "format": _FORMAT,
        "archive": archive,
        "made": time.time(),
        "prefix": str(prefix.relative_to(entry)),
        "python": str(interpreter.python.relative_to(prefix)),
        "needs_library_path": needs_library_path,
        "has_bytecode": has_bytecode,
        "interpreter": interpreter.as_json(),
        "boot": _boot(),
        "size": list(size),
    }
    json_cache.write(entry / RECORD_NAME, record)


def read_record(entry: Path) -> ReadyEntry | None:
    """The entry in a folder, None if it is incomplete."""
    record = json_cache.read(entry / RECORD_NAME)
    if record is None:
        require_readable(entry / RECORD_NAME, entry.parent)
    if record is None or record.get("format") != _FORMAT:
        return None
    try:
        stored = _stored(entry, record)
    except (KeyError, TypeError, ValueError):
        return None
    # To unpack again what another user keeps for itself would fail, or repeat work.
    for path in (stored.interpreter.python, *map(Path, stored.interpreter.site_dirs)):
        require_readable(path, entry.parent)
    if not stored.interpreter.python.exists():
        return None  # for example files were deleted by hand
    with explained(entry.parent):
        return stored if record.get("boot") == _boot() or _survived(entry, record, stored.prefix) else None


def _stored(entry: Path, record: dict[str, Any]) -> ReadyEntry:
    prefix = entry / record["prefix"]
    here = {"python": str(prefix / record["python"]), "prefix": str(prefix)}
    return ReadyEntry(
        entry.name,
        prefix,
        Interpreter.from_json({**record["interpreter"], **here}),
        prefix / "lib" if record["needs_library_path"] else None,
        None if record["has_bytecode"] else entry / "bytecode",
    )


def _survived(entry: Path, record: dict[str, Any], prefix: Path) -> bool:
    """Whether no file was lost in a reboot; if so, the record is updated, and the check runs once per boot."""
    if record.get("size") != _size(prefix):
        return False
    # In a read-only store the update fails, and every start compares the size.
    with contextlib.suppress(OSError):
        json_cache.write(entry / RECORD_NAME, {**record, "boot": _boot()})
    return True


def _size(prefix: Path) -> list[int]:
    """Number of files, links included, and their sizes; PermissionError if this user may not list a folder."""
    walked = os.walk(prefix, onerror=_raise_denied)
    files = [os.lstat(os.path.join(folder, name)) for folder, _, names in walked for name in names]  # noqa: PTH118 - plain strings: called for each of 10,000 files
    return [len(files), sum(facts.st_size for facts in files)]


def _raise_denied(error: OSError) -> None:
    if isinstance(error, PermissionError):
        raise error


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
