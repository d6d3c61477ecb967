"""The file that says an entry of the store is ready, and what was learnt about it while it was made.

It is written by rename after everything else. Files written before it can still be lost in a power failure, because
nothing is flushed: waiting for the disk (of a busy machine, seconds) at every first start is a poor price for that.
Instead the record holds the boot it was written in and the size of the whole; after another boot the size is
compared once. A file whose content never reached the disk is empty, which shows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad import json_cache
from naiad.interpreters.probe import Interpreter

_FORMAT = 1
RECORD_NAME = "ready.json"
"""Whatever folder has this file is ready."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ReadyEntry:
    """One ready entry.

    Attributes:
        digest: Its name.
        prefix: The environment's folder.
        interpreter: What its interpreter said.
        library_path: Folder its interpreter needs in LD_LIBRARY_PATH, None normally.
        bytecode: Folder for its bytecode, None if it brought its own.
    """

    digest: str
    prefix: Path
    interpreter: Interpreter
    library_path: Path | None
    bytecode: Path | None


def is_marked(entry: Path) -> bool:
    """Whether an entry has a record at all."""
    return (entry / RECORD_NAME).exists()


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
    """Say that an entry is ready. Paths are kept relative to it, so that a store can be moved as a whole.

    Args:
        entry: Its folder.
        archive: What it came from.
        interpreter: What its interpreter said.
        prefix: The environment in it.
        needs_library_path: Whether its interpreter has to be told where its libraries are.
        has_bytecode: Whether all of its bytecode is there.
        size: How many files are in the environment, links to files included, and the sum of their sizes.

    Raises:
        OSError: If it cannot be written.
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
    """The ready entry in a folder, None if it is not ready or no longer whole."""
    record = json_cache.read(entry / RECORD_NAME)
    if record is None or record.get("format") != _FORMAT:
        return None
    try:
        stored = _stored(entry, record)
    except (KeyError, TypeError, ValueError):
        return None
    if not stored.interpreter.python.exists():
        return None  # somebody cleaned up by hand
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
    """Whether an entry came through a reboot; if so, that is noted and not asked again until the next."""
    if record.get("size") != _size(prefix):
        return False
    # A store that is read-only here is compared at every start instead.
    with contextlib.suppress(OSError):
        json_cache.write(entry / RECORD_NAME, {**record, "boot": _boot()})
    return True


def _size(prefix: Path) -> list[int]:
    """Number of files, with links to files, and sum of their sizes."""
    files = [os.lstat(os.path.join(folder, name)) for folder, _, names in os.walk(prefix) for name in names]  # noqa: PTH118
    return [len(files), sum(facts.st_size for facts in files)]


def _boot() -> str:
    """What differs from one boot of the machine to the next; nothing where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
