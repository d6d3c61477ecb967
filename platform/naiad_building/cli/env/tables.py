"""The output of `naiad env`: its tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from naiad.config.model.declared_environment import is_declaration
from naiad.core.quantities import size_text
from naiad.environments.store.entries import StoreEntry, short_digests
from naiad.environments.store.eviction import StorePart
from naiad.environments.store.inspection import Inspection
from naiad.environments.store.leases import ModelUse, list_models
from naiad.environments.store.pulled import PulledRepository
from naiad.environments.store.verification import VerificationResult
from naiad.models.resolution.tables import text_table
from naiad_building.comparison import Difference, RequiredBy

_DIGEST_SHOWN = 12
_FILES_SHOWN = 10
ENTRY_HEADERS = ("Digest", "Archive", "Python", "numpy", "Platform", "Size", "Last used", "Models")
PULLED_HEADERS = ("Digest", "Reference", "Size", "Last used", "Models")
VERDICT_HEADERS = ("Archive", "Digest", "Result")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table."""
    print(f"{title}\n" if title else "", text_table(headers, rows), sep="", end="")


def entry_rows(entries: Iterable[StoreEntry], now: float) -> list[tuple[str, ...]]:
    """Rows for `ENTRY_HEADERS`."""
    entries = list(entries)
    short = short_digests(entry.digest for entry in entries)
    current = _current_uses(entries)
    return [
        (
            short[entry.digest],
            _origin(entry, current[entry.digest]),
            entry.python,
            entry.numpy,
            entry.platform,
            size_text(entry.size),
            "now" if entry.in_use else _ago(now - entry.last_used),
            _models(entry, current[entry.digest]),
        )
        for entry in entries
    ]


def pulled_rows(pulled: Iterable[PulledRepository], now: float) -> list[tuple[str, ...]]:
    """Rows for `PULLED_HEADERS`."""
    pulled = list(pulled)
    short = short_digests(one.digest for one in pulled)
    current = _current_uses(pulled)
    return [
        (
            short[one.digest],
            one.archive.partition("@")[0],
            size_text(one.size),
            "now" if one.in_use else _ago(now - one.last_used),
            _models(one, current[one.digest]),
        )
        for one in pulled
    ]


def _current_uses(parts: Sequence[StorePart]) -> dict[str, list[ModelUse]]:
    """The uses of each part that are not superseded, by its digest.

    A model whose environment has changed has used several parts, and uses the last one. Versions of a model that
    declare different environments use one each.
    """
    newest: dict[tuple[str, str], float] = {}
    for part in parts:
        for use in part.models:
            key = use.model, _declared_by(use)
            newest[key] = max(newest.get(key, 0.0), use.time)
    return {
        part.digest: [use for use in part.models if part.in_use or use.time == newest[use.model, _declared_by(use)]]
        for part in parts
    }


def _declared_by(use: ModelUse) -> str:
    """The file that declares the environment that a model uses; empty for an archive, of which a model has one."""
    return use.source if is_declaration(Path(use.source)) else ""


def _models(part: StorePart, current: Sequence[ModelUse]) -> str:
    return list_models(current) or (f"before: {list_models(part.models)}" if part.models else "")


def _origin(entry: StoreEntry, current: Sequence[ModelUse]) -> str:
    """The archive of an entry, or the first of the files that declare it now."""
    files = sorted({use.source for use in current} if is_declaration(Path(entry.archive)) else ())
    if not files:
        return entry.archive
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def verdict_rows(verdicts: Iterable[VerificationResult]) -> list[tuple[str, ...]]:
    """Rows for `VERDICT_HEADERS`."""
    return [
        (one.source, one.digest[:_DIGEST_SHOWN], "good" if one.is_intact else f"BAD: {one.problem}") for one in verdicts
    ]


def inspection_text(found: Inspection, models: Sequence[str]) -> str:
    """All facts about an environment, one a line, then its packages; unknown facts are left out."""
    entry = found.entry
    sizes = f"{size_text(found.size)} in {found.files} files"
    if found.packed_size:
        sizes += f", packed {size_text(found.packed_size)}"
    facts = (
        ("environment", found.source),
        ("kind", f"{found.kind}, made by {found.made_from}" if found.made_from else found.kind),
        ("name", found.name),
        ("digest", f"sha256:{found.digest}" if found.digest else ""),
        ("python", found.python),
        ("abi", found.abi),
        ("platform", found.platform),
        ("glibc", f"{found.glibc} or newer" if found.glibc else ""),
        ("size", sizes),
        ("in the store", "" if entry is None else f"{entry.folder}, made {_date(entry.made)}"),
        ("last used", "" if entry is None else "now" if entry.in_use else _date(entry.last_used)),
        ("models", ", ".join(models)),
        ("recipe", ", ".join(name for name, _ in found.recipe)),
        ("activation", ", ".join(found.activation)),
        ("signed by", ", ".join(found.signed_by)),
        *(("problem", problem) for problem in found.problems),
        ("packages", str(len(found.packages))),
    )
    lines = [f"{name:<14}{value}" for name, value in facts if value]
    return "\n".join((*lines, *(f"  {package.name} {package.version}" for package in found.packages))) + "\n"


def difference_text(found: Difference) -> str:
    """What differs between two environments: a line for each package, sums of the files, and the largest of these."""
    if found.is_empty:
        return "they do not differ\n"
    lines = []
    if found.python[0] != found.python[1]:
        lines.append(f"Python {found.python[0] or '?'} -> {found.python[1] or '?'}")
    for package in found.packages:
        if package.before and package.after:
            lines.append(f"~ {package.name} {package.before} -> {package.after}")
        else:
            lines.append(f"{'+' if package.after else '-'} {package.name} {package.after or package.before}")
    lines.append(
        f"size {size_text(found.sizes[0])} in {found.files[0]} files -> {size_text(found.sizes[1])} in "
        f"{found.files[1]} files"
    )
    added = [each for each in found.changes if each.before is None]
    removed = [each for each in found.changes if each.after is None]
    changed = [each for each in found.changes if each.before is not None and each.after is not None]
    lines.append(f"files: {len(added)} added, {len(removed)} removed, {len(changed)} changed")
    for change in found.changes[:_FILES_SHOWN]:
        mark = "+" if change.before is None else "-" if change.after is None else "~"
        lines.append(f"  {mark} {change.path} ({size_text(max(change.before or 0, change.after or 0))})")
    if len(found.changes) > _FILES_SHOWN:
        lines.append(f"  and {len(found.changes) - _FILES_SHOWN} more, which are smaller (all of them: --json)")
    return "\n".join(lines) + "\n"


def dependants_text(found: RequiredBy) -> str:
    """A tree of the packages that require another one."""
    lines = [f"{found.name} {found.version}"]
    if not found.dependants:
        lines.append("  no package requires it: the environment was made with it")

    def add(dependants: Iterable[RequiredBy], indent: str) -> None:
        for one in dependants:
            lines.append(f"{indent}<- {one.name} {one.version} (requires {one.requirement})")
            add(one.dependants, f"{indent}   ")

    add(found.dependants, "  ")
    return "\n".join(lines) + "\n"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"
