"""Sending an image to a registry: blobs that it has are not sent again, and the tag is moved last.

A registry shows a tag's manifest only once all its blobs are there, so an interrupted push changes nothing, and the
next one sends what is missing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from naiad.core import json_cache
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.models.artifacts.manifest import MANIFEST_TYPE
from naiad.sources.registry.client import RegistryClient, sha256_of
from naiad_operations.bundle.repository_image import RepositoryImage

_UPLOAD_THREADS = 4
_KNOWN_NAMES = 4


class Transfer(enum.Enum):
    """How a blob came to the registry; the values are for the command's output."""

    SENT = "sent"
    MOUNTED = "copied within the registry"
    PRESENT = "already there"


def send_image(
    client: RegistryClient,
    image: RepositoryImage,
    store: Path,
    reporter: ProgressReporter,
    report: Callable[[str, int, Transfer], None],
) -> str:
    """Send an image and move the tag to it; returns the manifest's digest. StaleRecordError if files have changed."""
    places = _BlobPlaces(store, client)

    def send(digest: str) -> tuple[str, int, Transfer]:
        blob = image.blobs[digest]
        if client.has_blob(digest):
            transfer = Transfer.PRESENT
        elif client.mount_blob(digest, places.others(digest)):
            transfer = Transfer.MOUNTED
        else:
            path = blob.file()
            with ProgressMeter(reporter, step="sending", label="", path=Path(blob.name), total=blob.size) as meter:
                client.send_blob(path, digest, meter.advance)
            transfer = Transfer.SENT
        return blob.name, blob.size, transfer

    target = client.reference.tag or image.digest
    if client.has_manifest(target, image.digest):
        for blob in image.blobs.values():
            report(blob.name, blob.size, Transfer.PRESENT)
        return image.digest
    with ThreadPoolExecutor(_UPLOAD_THREADS, thread_name_prefix="naiad-push") as pool:
        for name, size, transfer in pool.map(send, image.blobs):
            report(name, size, transfer)
    config = sha256_of(image.config)
    if not client.has_blob(config):
        client.send_blob(image.config, config, lambda _: None)
    client.put_manifest(target, image.manifest, MANIFEST_TYPE)
    places.remember(image.blobs)
    return image.digest


class _BlobPlaces:
    """The repositories of a registry that blobs were sent to before. A lost record costs time only."""

    def __init__(self, store: Path, client: RegistryClient) -> None:
        self._path = store / "artifacts" / "sent" / json_cache.name_for(client.reference.registry)
        self._name = client.reference.name
        self._names: dict[str, list[str]] = json_cache.read(self._path) or {}

    def others(self, digest: str) -> list[str]:
        return [name for name in self._names.get(digest, ()) if name != self._name]

    def remember(self, digests: Iterable[str]) -> None:
        known = json_cache.read(self._path) or {}
        for digest in digests:
            names = [self._name, *(name for name in known.get(digest, ()) if name != self._name)]
            known[digest] = names[:_KNOWN_NAMES]
        json_cache.write(self._path, known)
