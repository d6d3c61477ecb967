"""Pulled artifacts in the store of environments, shared by all servers of a user.

    <store>/artifacts/manifests/<digest>.json     manifests, for starts without a network
    <store>/artifacts/downloads/<digest>.part     a layer being downloaded; the next attempt resumes it
    <store>/artifacts/layers/<digest>/            an unpacked layer, complete
    <store>/artifacts/repositories/<digest>/      a model repository, made of hard links to the files of its layers
    <store>/artifacts/staging/<kind>-<digest>/    a folder being created; renamed when it is complete
    <store>/artifacts/locks/<kind>-<digest>.lock  locked while a folder is created

Everything is named by its digest and appears by a rename, so it is complete or absent. A crash leaves files in
`downloads` and `staging` only; the next process that takes the lock resumes the first and removes the second. Files
are read-only: models share them.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from naiad.core.blocking import run_each
from naiad.core.errors import NaiadError, RegistryError
from naiad.environments.archives.extraction import unpack
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.environments.store.access import denial
from naiad.environments.store.file_locks import shared_lock
from naiad.environments.store.leases import Lease
from naiad.environments.store.placement import spread
from naiad.environments.store.pulled import artifact_leases, artifacts_folder, lease_artifact, pull_lock
from naiad.models.artifacts.manifest import TOP_FOLDER, Artifact, ArtifactLayer, parse_artifact
from naiad.sources.registry.client import RegistryClient, sha256_of
from naiad.sources.registry.references import Reference

_log = logging.getLogger("naiad.artifacts")
_DOWNLOAD_THREADS = 4
_READ_ONLY = 0o555
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class ArtifactStore:
    """Manifests, layers and repositories in one folder; safe to use from any number of threads and processes."""

    def __init__(self, store: Path, reporter: ProgressReporter) -> None:
        self._store = store
        self._root = artifacts_folder(store)
        self._reporter = reporter

    def artifact(self, client: RegistryClient) -> Artifact:
        """The artifact that a client's reference names. A digest that is in the store needs no network."""
        reference = client.reference
        known = self._known_manifest(reference)
        if known is not None:
            return parse_artifact(reference, reference.digest, known)
        digest, data = client.read_manifest(reference.target)
        artifact = parse_artifact(reference, digest, data)
        self._write_manifest(artifact)
        return artifact

    def _write_manifest(self, artifact: Artifact) -> None:
        with self._errors(f"the manifest of {artifact.reference}"):
            path = self._manifest_path(artifact.digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(artifact.data)
            temporary.replace(path)

    def lease(self, artifact: Artifact) -> Lease:
        """A lease on an artifact: `naiad env gc` keeps it until the lease is released."""
        lease = lease_artifact(self._store, artifact.digest)
        with self._errors(f"{artifact.reference}"):
            if not self._manifest_path(artifact.digest).is_file():  # removed before there was a lease
                self._write_manifest(artifact)
        return lease

    def record_model(self, artifact: Artifact, model: str) -> None:
        """Record that a model of an artifact was pulled, for `naiad env list`."""
        artifact_leases(self._store).record_model(_digits(artifact.digest), model, str(artifact.reference))

    def repository(self, artifact: Artifact) -> Path:
        return self._root / "repositories" / _digits(artifact.digest)

    def fetch(
        self, client: RegistryClient, artifact: Artifact, layers: Iterable[ArtifactLayer], label: str = ""
    ) -> bool:
        """Bring layers into an artifact's repository; returns whether one was missing.

        Args:
            layers: Some of its layers; all layers of a part or none.

        Raises:
            RegistryError: If a layer cannot be downloaded or unpacked; received bytes stay for the next attempt.
        """
        parts: dict[str, list[ArtifactLayer]] = {}
        for layer in layers:
            parts.setdefault(layer.part, []).append(layer)
        repository = self.repository(artifact)
        with self._errors(f"{artifact.reference}"):
            missing = [own for own in parts.values() if not (repository / own[0].folder).exists()]
        wanted = [layer for own in missing for layer in own]
        if not wanted:
            return False
        with self._errors(f"{artifact.reference}"), shared_lock(pull_lock(self._store)):
            run_each(lambda layer: self.layer(client, layer, label), wanted, threads=_DOWNLOAD_THREADS)
            with self._lock("repository", artifact.digest):
                for own in missing:
                    self._place(repository, artifact, own)
        return True

    def layer(self, client: RegistryClient, layer: ArtifactLayer, label: str = "") -> Path:
        """The folder of an unpacked layer, downloaded and unpacked unless it is there."""
        folder = self._root / "layers" / _digits(layer.digest)
        with self._errors(f"{layer} of {client.reference}"):
            if folder.is_dir():
                os.utime(folder)  # the time of the last use
                self._part(layer).unlink(missing_ok=True)  # a process was killed before it could
                return folder
            with self._lock("layer", layer.digest):
                if not folder.is_dir():
                    self._create_layer(client, layer, folder, label)
        return folder

    def _create_layer(self, client: RegistryClient, layer: ArtifactLayer, folder: Path, label: str) -> None:
        part = self._part(layer)
        named = Path(layer.name)
        with ProgressMeter(self._reporter, step="downloading", label=label, path=named, total=layer.size) as meter:
            client.download_blob(layer.digest, layer.size, part, str(layer), meter.advance)
        staging = self._staging("layer", layer.digest)
        what = f"{layer} of {client.reference}"
        unpack(part, staging, reporter=self._reporter, label=label, what=what)
        _make_read_only(staging, what)
        folder.parent.mkdir(parents=True, exist_ok=True)
        spread(folder.parent)
        staging.rename(folder)
        part.unlink(missing_ok=True)

    def _place(self, repository: Path, artifact: Artifact, layers: list[ArtifactLayer]) -> None:
        target = repository / layers[0].folder
        if target.exists():
            return
        staging = self._staging("repository", artifact.digest)
        made = staging / "part"
        for layer in layers:
            source = self._root / "layers" / _digits(layer.digest) / TOP_FOLDER / layer.folder
            if not source.exists():
                raise RegistryError(
                    f"cannot use {layer} of {artifact.reference}: the layer has no {TOP_FOLDER}/{layer.folder}; push "
                    "the repository again"
                )
            try:
                _link(source, made)
            except FileExistsError as error:
                name = Path(error.filename2).name
                raise RegistryError(
                    f"cannot use {layer} of {artifact.reference}: another layer has its file {name}, too; push the "
                    "repository again"
                ) from error
        target.parent.mkdir(parents=True, exist_ok=True)
        made.rename(target)
        staging.rmdir()

    def _known_manifest(self, reference: Reference) -> bytes | None:
        if not reference.digest:
            return None
        path = self._manifest_path(reference.digest)
        try:
            data = path.read_bytes()
        except OSError:
            if (denied := denial(path, self._store)) is not None:
                raise RegistryError(f"cannot pull {reference}: {denied.message}") from None
            return None
        return data if sha256_of(data) == reference.digest else None

    def _manifest_path(self, digest: str) -> Path:
        return self._root / "manifests" / f"{_digits(digest)}.json"

    def _part(self, layer: ArtifactLayer) -> Path:
        return self._root / "downloads" / f"{_digits(layer.digest)}.part"

    def _staging(self, kind: str, digest: str) -> Path:
        """An empty folder to create something in; the caller holds the lock. Leftovers of a crash are removed."""
        staging = self._root / "staging" / f"{kind}-{_digits(digest)}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        return staging

    @contextmanager
    def _lock(self, kind: str, digest: str) -> Iterator[None]:
        from filelock import FileLock  # here: a start whose layers are all in the store needs no lock

        locks = self._root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        # thread_local=False: a lock is released by the object that took it, in any thread.
        with FileLock(locks / f"{kind}-{_digits(digest)}.lock", thread_local=False):
            yield

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except RegistryError:
            raise
        except NaiadError as error:
            raise RegistryError(f"cannot pull {what}: {error.message}", code=error.code) from error
        except OSError as error:
            if (denied := denial(Path(error.filename or self._root), self._store)) is not None:
                raise RegistryError(f"cannot pull {what}: {denied.message}") from error
            advice = (
                "make room on its disk, or choose another folder with --env-store"
                if error.errno in _NO_SPACE
                else "choose another folder with --env-store, or correct its permissions"
            )
            raise RegistryError(
                f"cannot pull {what} into {self._root}: {error.strerror or error}"
                f"{f' ({error.filename})' if error.filename else ''}; {advice}"
            ) from error


def copy_repository(repository: Path, output: Path, parts: Sequence[str]) -> None:
    """Copy parts of a pulled repository (paths) into a folder of the user's own, whose files may be changed."""
    for part in parts:
        if not (output / part).exists():
            _copy(repository / part, output / part)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True)
        for entry in sorted(source.iterdir()):
            _copy(entry, target / entry.name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode | 0o200)


def _digits(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _make_read_only(folder: Path, what: str) -> None:
    """Give the files of a layer one time and no permission to write.

    A link is rejected: it could lead out of the repository, which is another folder than that of the layer. The time is
    the present: two versions of a layer must differ in the times of files by which a server recognises changes, and in
    a layer all times are the same constant.
    """
    now = time.time_ns()
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            if path.is_symlink():
                raise RegistryError(
                    f"{what} is refused: its member '{path.relative_to(folder)}' is a symbolic link, and `naiad push` "
                    "writes none"
                )
            if name in names:
                path.chmod(path.stat().st_mode & _READ_ONLY)
                os.utime(path, ns=(now, now))


def _link(source: Path, target: Path) -> None:
    """Hard links to a file, or to all files of a folder; copies where the file system has no links."""
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            _link(entry, target / entry.name)
    else:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}:
                raise
            shutil.copy2(source, target)
