"""`naiad env verify`: compares store entries with their records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.environments.store.entries import StoreEntry, find_entry, read_entries
from naiad.environments.store.file_digests import FileChanges, compare_files
from naiad.environments.store.leases import EntryLeases

_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result for one entry."""

    source: str
    digest: str
    problem: str = ""
    detail: str = ""
    alterations: FileChanges | None = None  # differences; None without recorded digests

    @property
    def is_intact(self) -> bool:
        return not self.problem


def verify_entries(root: Path, names: tuple[str, ...]) -> list[VerificationResult]:
    """Compare entries of a store with their recorded digests; all entries unless some are named."""
    entries = [find_entry(root, name) for name in names] if names else read_entries(root)
    return [_verify_entry(entry, EntryLeases(root)) for entry in entries]


def _verify_entry(entry: StoreEntry, leases: EntryLeases) -> VerificationResult:
    lease = leases.acquire(entry.digest, counts=False)
    try:
        found = compare_files(entry.folder)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error} ({error.filename})"
        return VerificationResult(source=entry.archive, digest=entry.digest, problem=problem)
    finally:
        lease.release()
    if found is None:
        problem = f"no digests were recorded when it was unpacked (by an older naiad): {_removal_advice(entry)}"
    elif found.has_changes:
        problem = (
            f"it was altered after it was unpacked: {_summary(found)}; stop its users and {_removal_advice(entry)}"
        )
    else:
        problem = ""
    detail = f"{found.files} files compared" if found else ""
    return VerificationResult(
        source=entry.archive, digest=entry.digest, problem=problem, detail=detail, alterations=found
    )


def _removal_advice(entry: StoreEntry) -> str:
    return f"remove it with `naiad env remove {entry.digest[:12]}`, so that the next server unpacks it again"


def _summary(found: FileChanges) -> str:
    parts = []
    for what, names in (("changed", found.changed), ("missing", found.missing), ("added", found.added)):
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        parts += [f"{', '.join(names[:_NAMED])}{more} {what}"] if names else []
    return "; ".join(parts)
