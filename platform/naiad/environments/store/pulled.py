"""Repositories that were pulled into a store: which there are, what they take, and removing those that nothing uses.

A server has a lease on each repository that it serves from, and a pull while it works (`EntryLeases` of the folder
`artifacts`). A layer is removed with the last repository that has it. Files that are used otherwise, such as those that
a running guest has opened, stay readable.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from naiad.core.errors import Code, NaiadError, RegistryError
from naiad.core.foreign_json import read_json
from naiad.environments.store.entries import begins_with
from naiad.environments.store.file_locks import try_exclusive_lock
from naiad.environments.store.leases import EntryLeases, Lease, ModelUse
from naiad.sources.registry.references import parse_reference

_log = logging.getLogger("naiad.artifacts")
_DIGITS = re.compile(r"[0-9a-f]{64}")
_SHORT = re.compile(r"sha256:[0-9a-f]{7,63}")
_STALE_SECONDS = 86_400  # age from which an incomplete download is a leftover: until then the next pull resumes it


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledRepository:
    """A repository in the store."""

    digest: str
    archive: str  # reference that it was pulled by, with the digest; "?" if that is not recorded
    folder: Path
    folders: tuple[Path, ...]  # the folders of its layers, and `folder`
    size: int
    last_used: float  # time of the last lease, in seconds since the epoch
    in_use: bool
    models: tuple[ModelUse, ...]


def artifacts_folder(store: Path) -> Path:
    """The folder of pulled artifacts in a store."""
    return store / "artifacts"


def artifact_leases(store: Path) -> EntryLeases:
    """The leases on pulled repositories, by the SHA-256 of their manifests."""
    return EntryLeases(artifacts_folder(store))


def lease_artifact(store: Path, digest: str) -> Lease:
    """A lease on a pulled repository: it stays in the store until the lease is released."""
    return artifact_leases(store).acquire(digest.removeprefix("sha256:"))


def pull_lock(store: Path) -> Path:
    """The file that is locked shared while layers are pulled, and exclusively while unused ones are removed."""
    return artifacts_folder(store) / "locks" / "pulls.lock"


def read_pulled(store: Path) -> list[PulledRepository]:
    """The repositories in a store, sorted by their reference."""
    leases = artifact_leases(store)
    found = [_read(store, path, leases) for path in _manifests(store)]
    return sorted(found, key=lambda one: (one.archive, one.digest))


def find_pulled(store: Path, text: str) -> PulledRepository | None:
    """The repository for a command-line argument: a digest, the start of one, or its reference; None if unknown."""
    found = [one for one in read_pulled(store) if begins_with(one.digest, text) or one.archive == text]
    if len(found) > 1:
        raise RegistryError(
            f"'{text}' is ambiguous: {len(found)} pulled repositories match, "
            f"{', '.join(one.digest[:12] for one in found)}; give more digits",
            code=Code.INVALID_ARG,
        )
    return found[0] if found else None


def complete_reference(store: Path, text: str) -> str:
    """A reference whose digest may be the start of that of a pulled repository, with the whole digest."""
    place, at, digest = text.partition("@")
    if not at or not _SHORT.fullmatch(digest):
        return text
    found = find_pulled(store, digest)
    if found is None or _repository(found.archive) != _repository(f"{place}@sha256:{found.digest}"):
        return text  # the error about an incomplete digest says what to write
    return f"{place}@sha256:{found.digest}"


def _repository(reference: str) -> tuple[str, str] | None:
    try:
        parsed = parse_reference(reference)
    except NaiadError:
        return None
    return parsed.registry, parsed.name


def remove_pulled(store: Path, digest: str) -> bool:
    """Remove a repository, its manifest and the layers that no other one has; False if a process uses it."""
    leases = artifact_leases(store)
    with leases.exclusive(digest) as is_unused:
        if not is_unused:
            return False
        try:
            _discard(store, artifacts_folder(store) / "repositories" / digest)
            _manifest(store, digest).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot remove the pulled repository %s from %s: %s", digest, store, error)
            return False
        leases.forget_models(digest)
    remove_pulled_leftovers(store)
    return True


def pulled_leftovers(store: Path) -> list[Path]:
    """Layers that no repository has, remains of crashes, and downloads that were not resumed for a day."""
    if not artifacts_folder(store).is_dir():
        return []
    copies = unused_copies(artifacts_folder(store) / "copies")
    with try_exclusive_lock(pull_lock(store)) as is_locked:
        return [*copies, *(_leftovers(store) if is_locked else ())]


def remove_pulled_leftovers(store: Path) -> None:
    """Remove `pulled_leftovers`, unless a pull is in progress."""
    if not artifacts_folder(store).is_dir():
        return
    remove_unused_copies(artifacts_folder(store) / "copies")
    with try_exclusive_lock(pull_lock(store)) as is_locked:
        for path in list(_leftovers(store)) if is_locked else ():
            _discard(store, path)


@cache
def copies_folder(store: Path) -> Path:
    """The folder for copies of signed files, which servers run; a temporary one where the store cannot be written.

    Each server has a sub-folder of its own, and holds the lock of the file `<sub-folder>.lock` beside it.

    Raises:
        OSError: If there is no folder for temporary files either.
    """
    folder = artifacts_folder(store) / "copies"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK | os.X_OK):
        return folder
    temporary = Path(tempfile.mkdtemp(prefix="naiad-copies-"))
    temporary.chmod(0o755)  # guests may run as another user
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def unused_copies(folder: Path) -> list[Path]:
    """The copies in a `copies_folder` whose server has ended without removing them."""
    return [path for path in _copies(folder) if _if_unused(path, lambda _: None)]


def remove_unused_copies(folder: Path) -> None:
    """Remove `unused_copies`."""
    for path in _copies(folder):
        _if_unused(path, lambda unused: shutil.rmtree(unused, ignore_errors=True))


def _if_unused(path: Path, action: Callable[[Path], None]) -> bool:
    """Do something to a copy while it is locked, if no server uses it."""
    lock = path.with_name(f"{path.name}.lock")
    # A file system without locks: it may be in use.
    with contextlib.suppress(OSError), try_exclusive_lock(lock) as is_locked:
        if is_locked:
            action(path)
            return True
    return False


def _copies(folder: Path) -> list[Path]:
    return [path for path in _children(folder) if path.is_dir()]


def _leftovers(store: Path) -> Iterator[Path]:
    """The caller holds the lock of pulls."""
    root = artifacts_folder(store)
    used = {digest for path in _manifests(store) for digest in _layers(path)}
    known = {path.stem for path in _manifests(store)}
    yield from (path for path in _children(root / "layers") if path.name not in used)
    yield from (path for path in _children(root / "repositories") if path.name not in known)
    yield from _children(root / "staging")
    stale = time.time() - _STALE_SECONDS
    yield from (path for path in _children(root / "downloads") if path.stat().st_mtime < stale)


def _read(store: Path, manifest: Path, leases: EntryLeases) -> PulledRepository:
    root, digest = artifacts_folder(store), manifest.stem
    layers = [root / "layers" / name for name in _layers(manifest)]
    folder = root / "repositories" / digest
    models = tuple(leases.models(digest))
    last = leases.last_used(digest)
    return PulledRepository(
        digest=digest,
        archive=next((use.source for use in models), "?"),
        folder=folder,
        folders=(folder, *layers),
        size=sum(path.stat().st_size for layer in layers for path in layer.rglob("*") if path.is_file()),
        last_used=manifest.stat().st_mtime if last is None else last,
        in_use=leases.is_leased(digest),
        models=models,
    )


def _layers(manifest: Path) -> list[str]:
    try:
        layers = read_json(manifest.read_bytes())["layers"]
        return list(dict.fromkeys(str(layer["digest"]).removeprefix("sha256:") for layer in layers))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _manifests(store: Path) -> list[Path]:
    found = _children(artifacts_folder(store) / "manifests")
    return [path for path in found if path.suffix == ".json" and _DIGITS.fullmatch(path.stem)]


def _manifest(store: Path, digest: str) -> Path:
    return artifacts_folder(store) / "manifests" / f"{digest}.json"


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _discard(store: Path, path: Path) -> None:
    """Delete a folder, or a file. A folder is renamed first: a crash leaves a staging folder, never half a layer."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    staging = artifacts_folder(store) / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    if path.parent == staging:
        shutil.rmtree(path)
        return
    removed = staging / f"removed-{uuid.uuid4().hex}"
    path.rename(removed)
    shutil.rmtree(removed)
