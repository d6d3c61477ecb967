"""The entries of a store as values: for listings, scripts and eviction."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from naiad.core import json_cache
from naiad.core.errors import Code, ExecutionEnvironmentError
from naiad.core.quantities import counted
from naiad.environments.store.access import denial, require_readable
from naiad.environments.store.leases import EntryLeases, ModelUse
from naiad.environments.store.record import RECORD_NAME

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHORTEST = 7  # digits of a digest that name an entry, if they are unique; as many as git shows of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """One complete entry. Texts are "?" where its record has no value."""

    digest: str
    folder: Path
    archive: str
    python: str
    numpy: str
    platform: str  # as of `sysconfig.get_platform()`
    size: int
    files: int
    made: float  # time of unpacking, in seconds since the epoch
    last_used: float
    in_use: bool
    models: tuple[ModelUse, ...]

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.folder,)


def read_entries(root: Path) -> list[StoreEntry]:
    """The complete entries of a store, sorted by their archive."""
    leases = EntryLeases(root)
    found = [_read(path, leases) for path in _records(root)]
    return sorted(filter(None, found), key=lambda entry: (entry.archive, entry.digest))


def explain_closed_entries(root: Path) -> str:
    """Why `read_entries` leaves out entries that this user may not read; "" if there are none."""
    found = [error for path in _records(root) if (error := denial(path, root)) is not None]
    return f"{counted(len(found), 'environment')} left out: {found[0].message}" if found else ""


def entry_sizes(root: Path) -> list[int]:
    """The recorded sizes of the complete entries in bytes; cheap enough for every scrape of the metrics."""
    sizes = []
    for path in root.glob(f"*/{RECORD_NAME}"):
        record = json_cache.read(path) if _DIGEST.fullmatch(path.parent.name) else None
        if record is not None:
            with contextlib.suppress(TypeError, ValueError):
                _, size = record.get("size", (0, 0))
                sizes.append(int(size))
    return sizes


def short_digests(digests: Iterable[str]) -> dict[str, str]:
    """The shortest start of each digest, of at least seven digits, that names it alone among them."""
    ordered = sorted(set(digests))
    lengths = dict.fromkeys(ordered, _SHORTEST)
    for one, other in pairwise(ordered):
        shared = 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))
        lengths[one], lengths[other] = max(lengths[one], shared), max(lengths[other], shared)
    return {digest: digest[:length] for digest, length in lengths.items()}


def begins_with(digest: str, text: str) -> bool:
    """Whether *text* is a digest or the start of one, with at least seven digits, that *digest* begins with."""
    wanted = text.removeprefix("sha256:").lower()
    return len(wanted) >= _SHORTEST and digest.startswith(wanted)


def find_entry(root: Path, text: str) -> StoreEntry:
    """The entry for a command-line argument: a digest, the start of a digest, or an archive."""
    entries = read_entries(root)
    found = [entry for entry in entries if begins_with(entry.digest, text)]
    for record in _records(root) if not found else ():
        if begins_with(record.parent.name, text):
            require_readable(record, root)
    if not found:
        same = {text, os.path.realpath(text)}
        found = [entry for entry in entries if entry.archive in same or os.path.realpath(entry.archive) in same]
    if len(found) == 1:
        return found[0]
    if found:
        raise ExecutionEnvironmentError(
            f"'{text}' is ambiguous: {len(found)} environments in {root} match, "
            f"{', '.join(entry.digest[:12] for entry in found)}; name one by its digest"
        )
    no_file = "" if Path(text).exists() else ", and no such file"
    raise ExecutionEnvironmentError(
        f"there is no environment '{text}' in {root}, which holds {len(entries)}{no_file}; name one by its digest "
        f"(or the first {_SHORTEST} digits of it) or by its archive, as `naiad env list` shows them",
        code=Code.NOT_FOUND,
    )


def _records(root: Path) -> list[Path]:
    require_readable(root, root)
    try:
        return [entry / RECORD_NAME for entry in root.iterdir() if _DIGEST.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: Path, leases: EntryLeases) -> StoreEntry | None:
    record = json_cache.read(path)
    if record is None:
        return None
    digest = path.parent.name
    interpreter = record.get("interpreter")
    facts: dict[str, Any] = interpreter if isinstance(interpreter, dict) else {}
    with contextlib.suppress(OSError, TypeError, ValueError):
        made = float(record.get("made", path.stat().st_mtime))
        files, size = record.get("size", (0, 0))
        bytecode = list(file_sizes(path.parent / "bytecode"))
        last = leases.last_used(digest)
        return StoreEntry(
            digest=digest,
            folder=path.parent,
            archive=str(record.get("archive", "?")),
            python=".".join(map(str, facts.get("version", ("?",)))),
            numpy=str(facts.get("numpy") or "none"),
            platform=str(facts.get("platform", "?")),
            size=size + sum(bytecode),
            files=files + len(bytecode),
            made=made,
            last_used=made if last is None else max(last, made),
            in_use=leases.is_leased(digest),
            models=tuple(leases.models(digest)),
        )
    return None


def file_sizes(folder: Path) -> Iterator[int]:
    """The sizes of the files in a folder, links not followed."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(parent, name).lstat().st_size
