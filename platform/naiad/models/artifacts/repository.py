"""A model repository in a registry, as a server reads it: models are pulled into the store when they are loaded."""

from __future__ import annotations

import logging
from pathlib import Path

from naiad.core.errors import RepositoryError
from naiad.environments.progress import LogReporter, ProgressReporter, default_reporter
from naiad.environments.store.eviction import shrink_store
from naiad.environments.store.leases import EntryLeases, Lease
from naiad.environments.store.store import Store
from naiad.models.artifacts.manifest import Artifact
from naiad.models.artifacts.policy import ArtifactPolicy
from naiad.models.artifacts.statements import SignedStatement, read_statement
from naiad.models.artifacts.store import ArtifactStore
from naiad.models.artifacts.verification import require_signed_artifact
from naiad.models.polling import Snapshot
from naiad.sources.registry.client import RegistryClient, open_registry
from naiad.sources.registry.references import parse_reference

_log = logging.getLogger("naiad.artifacts")


class ArtifactRepository:
    """A `naiad.models.repository.repositories.Repository` in a registry.

    A tag is resolved again at each listing, so poll mode sees a tag that was moved. Each digest has its own directory,
    so models that were loaded before keep their files. A reference with a digest needs no network once it was pulled.
    """

    base_uri = ""

    def __init__(self, location: str, policy: ArtifactPolicy, reporter: ProgressReporter | None = None) -> None:
        self.location = location
        self._policy = policy
        self._client = open_registry(parse_reference(location))
        self._store = ArtifactStore(policy.store, reporter or default_reporter())
        self._artifact: Artifact | None = None
        self._by_directory: dict[Path, Artifact] = {}
        self._leases: list[Lease] = []

    @property
    def directory(self) -> Path:
        return self._policy.store / "artifacts" if self._artifact is None else self._store.repository(self._artifact)

    def model_names(self) -> list[str]:
        return self._list().models

    def known_model_names(self) -> list[str]:
        return [] if self._artifact is None else self._artifact.models

    def snapshot(self) -> Snapshot:
        """See `Repository.snapshot`: a model has changed if the digest of a layer that it needs has."""
        artifact = self._list()
        return {
            # One entry, so that a change reloads the whole model: its versions share layers.
            name: {".": tuple(layer.digest for layer in artifact.layers_of(name))}
            for name in artifact.models
        }

    def fetch(self, name: str, directory: Path | None = None) -> None:
        artifact = self._by_directory.get(directory or self.directory) or self._list()
        layers = artifact.layers_of(name)
        if not layers:
            raise RepositoryError(
                f"failed to poll model '{name}': {artifact.reference} has no such model; its models are "
                f"{', '.join(artifact.models)}"
            )
        is_new = self._store.fetch(self._client, artifact, layers, name)
        self._store.record_model(artifact, name)
        if is_new and self._policy.max_bytes:
            root = self._policy.store
            shrink_store(Store(root, LogReporter()), EntryLeases(root), self._policy.max_bytes)

    def has_directory(self, directory: Path) -> bool:
        return directory in self._by_directory

    def close(self) -> None:
        """Release the leases. The store keeps the files for the next start, until they are removed as unused."""
        for lease in self._leases:
            lease.release()

    def _list(self) -> Artifact:
        current = self._artifact
        if current is not None and self._client.reference.digest:
            return current
        artifact = open_artifact(self._client, self._store, self._policy)
        if current is None or current.digest != artifact.digest:
            before = "" if current is None else f", before {current.digest}"
            _log.info("repository %s has the digest %s%s", self.location, artifact.digest, before)
            # Models that were loaded before a tag moved keep their files, so earlier leases stay.
            self._leases.append(self._store.lease(artifact))
            self._artifact = artifact
            self._by_directory[self._store.repository(artifact)] = artifact
        return artifact


def open_artifact(client: RegistryClient, store: ArtifactStore, policy: ArtifactPolicy) -> Artifact:
    """The artifact that a client's reference names, if it has the signatures that are required."""
    artifact = store.artifact(client)
    if policy.required_keys is not None:
        statements = artifact_statements(client, store, artifact, policy)
        signer = require_signed_artifact(artifact, client.reference, statements, policy.required_keys)
        _log.info("repository %s is signed by '%s'", artifact.reference, signer)
    return artifact


def artifact_statements(
    client: RegistryClient, store: ArtifactStore, artifact: Artifact, policy: ArtifactPolicy
) -> list[SignedStatement]:
    """The statements in an artifact's signatures."""
    store.fetch(client, artifact, artifact.signatures)
    files = [store.repository(artifact) / layer.folder for layer in artifact.signatures]
    return [read_statement(file.read_bytes(), policy.required_keys, str(file)) for file in files]
