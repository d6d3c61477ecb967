"""What a store holds, as values for tables, for scripts and for the choice of what may go."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad import json_cache
from naiad.environments.store.leases import EntryLeases, ModelUse
from naiad.environments.store.record import RECORD_NAME
from naiad.errors import Code, ExecutionEnvironmentError

__all__ = ["StoreEntry", "entry_sizes", "find_entry", "read_entries"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHORTEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """One ready entry. Texts are "?" where its record does not say.

    Attributes:
        digest: SHA-256 of the archive, its name.
        folder: Its folder.
        archive: Where the archive came from.
        python: Version of its interpreter.
        numpy: Version of its numpy.
        platform: As of `sysconfig.get_platform()`.
        size: Bytes of all its files.
        files: How many.
        made: When it was unpacked, in seconds since the epoch.
        last_used: When it was last asked for.
        in_use: Whether a running process uses it.
        models: Models that used it.
    """

    digest: str
    folder: Path
    archive: str
    python: str
    numpy: str
    platform: str
    size: int
    files: int
    made: float
    last_used: float
    in_use: bool
    models: tuple[ModelUse, ...]


def read_entries(root: Path) -> list[StoreEntry]:
    """The ready entries of a store, by the archive they came from.

    Raises:
        ExecutionEnvironmentError: If the folder may not be read.
    """
    uses = EntryLeases(root)
    try:
        records = list(root.glob(f"*/{RECORD_NAME}"))
    except OSError as error:
        raise ExecutionEnvironmentError(
            f"cannot read the store of environments at {root}: {error.strerror or error}; name another with --env-store"
        ) from error
    found = [_read(path, uses) for path in records if _DIGEST.fullmatch(path.parent.name)]
    return sorted(filter(None, found), key=lambda entry: (entry.archive, entry.digest))


def entry_sizes(root: Path) -> list[int]:
    """The sizes of the ready entries of a store as their records tell them: cheap enough to be asked often."""
    sizes = []
    for path in root.glob(f"*/{RECORD_NAME}"):
        record = json_cache.read(path) if _DIGEST.fullmatch(path.parent.name) else None
        if record is not None:
            with contextlib.suppress(TypeError, ValueError):
                _, size = record.get("size", (0, 0))
                sizes.append(int(size))
    return sizes


def find_entry(root: Path, text: str) -> StoreEntry:
    """The entry that a person means: by its digest or the beginning of it, or by the archive it came from.

    Raises:
        ExecutionEnvironmentError: If there is none, or more than one.
    """
    entries = read_entries(root)
    wanted = text.removeprefix("sha256:").lower()
    found = [entry for entry in entries if len(wanted) >= _SHORTEST and entry.digest.startswith(wanted)]
    if not found:
        same = {text, os.path.realpath(text)}
        found = [entry for entry in entries if entry.archive in same or os.path.realpath(entry.archive) in same]
    if len(found) == 1:
        return found[0]
    if found:
        raise ExecutionEnvironmentError(
            f"'{text}' means {len(found)} environments in {root}: {', '.join(entry.digest[:12] for entry in found)}; "
            "name one by its digest"
        )
    nowhere = "" if Path(text).exists() else ", and no such file"
    raise ExecutionEnvironmentError(
        f"there is no environment '{text}' in {root}, which holds {len(entries)}{nowhere}; name one by its digest "
        f"(or the first {_SHORTEST} digits of it) or by its archive, as `naiad env list` shows them",
        code=Code.NOT_FOUND,
    )


def _read(path: Path, uses: EntryLeases) -> StoreEntry | None:
    record = json_cache.read(path)
    if record is None:
        return None
    digest = path.parent.name
    interpreter = record.get("interpreter")
    said: dict[str, Any] = interpreter if isinstance(interpreter, dict) else {}
    with contextlib.suppress(OSError, TypeError, ValueError):
        made = float(record.get("made", path.stat().st_mtime))
        files, size = record.get("size", (0, 0))
        extra = list(_sizes(path.parent / "bytecode"))
        last = uses.last(digest)
        return StoreEntry(
            digest=digest,
            folder=path.parent,
            archive=str(record.get("archive", "?")),
            python=".".join(map(str, said.get("version", ("?",)))),
            numpy=str(said.get("numpy") or "none"),
            platform=str(said.get("platform", "?")),
            size=size + sum(extra),
            files=files + len(extra),
            made=made,
            last_used=made if last is None else max(last, made),
            in_use=uses.is_used(digest),
            models=tuple(uses.models(digest)),
        )
    return None


def _sizes(folder: Path) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(parent, name).lstat().st_size
