"""Whether an environment is still what it was: entries are compared file by file, archives unpacked for a try."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.environments.archives.signatures import TrustedKeys
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.entries import StoreEntry, find_entry, read_entries
from naiad.environments.store.file_digests import FileChanges, compare_files
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.store import Store
from naiad.errors import ExecutionEnvironmentError

__all__ = ["VerificationResult", "verify_archive", "verify_entries"]

_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """What came out for one environment.

    Attributes:
        source: The archive.
        digest: Its SHA-256.
        problem: What is wrong with it and what to do, empty if nothing is.
        detail: What was looked at.
        alterations: Differences of an entry, None for an archive or where nothing was recorded.
    """

    source: str
    digest: str
    problem: str = ""
    detail: str = ""
    alterations: FileChanges | None = None

    @property
    def is_intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def verify_entries(root: Path, names: tuple[str, ...]) -> list[VerificationResult]:
    """Compare entries of a store with what was recorded when they were made; all of them unless some are named.

    Raises:
        ExecutionEnvironmentError: If one that is named is not there.
    """
    entries = [find_entry(root, name) for name in names] if names else read_entries(root)
    return [_verify_entry(entry, EntryLeases(root)) for entry in entries]


def verify_archive(
    archive: Path, root: Path, reporter: ProgressReporter, trust: TrustedKeys | None = None
) -> VerificationResult:
    """Do with an archive all that a server does that trusts these keys, and throw the result away."""
    store = Store(root, reporter)
    digest = ""
    try:
        content = store.content(archive)
        digest = content.digest
        if trust is not None:
            trust.verify_local_archive(archive, digest)
        stored = store.unpack_for_trial(archive, content)
    except ExecutionEnvironmentError as error:
        return VerificationResult(source=str(archive), digest=digest, problem=error.message)
    return VerificationResult(source=str(archive), digest=digest, detail=f"unpacked and started: {stored.interpreter}")


def _verify_entry(entry: StoreEntry, uses: EntryLeases) -> VerificationResult:
    lease = uses.hold(entry.digest, counts=False)
    try:
        found = compare_files(entry.folder)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error} ({error.filename})"
        return VerificationResult(source=entry.archive, digest=entry.digest, problem=problem)
    finally:
        lease.release()
    if found is None:
        problem = (
            "no digests were recorded when it was unpacked (an older naiad did it): remove it with `naiad env remove "
            f"{entry.digest[:12]}`, and the next server that needs it unpacks it anew"
        )
    elif found.any:
        problem = f"it was altered after it was unpacked: {_summary(found)}; stop its users and {_cure(entry)}"
    else:
        problem = ""
    detail = f"{found.files} files compared" if found else ""
    return VerificationResult(
        source=entry.archive, digest=entry.digest, problem=problem, detail=detail, alterations=found
    )


def _cure(entry: StoreEntry) -> str:
    return f"remove it with `naiad env remove {entry.digest[:12]}`, so that it is unpacked anew"


def _summary(found: FileChanges) -> str:
    kinds = (("changed", found.changed), ("missing", found.missing), ("added", found.added))
    return "; ".join(f"{_list(names)} {what}" for what, names in kinds if names)


def _list(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
