"""All model repositories of a server: directories of this machine, object stores (`remote`), and registries."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from naiad.config.server.options import ServerOptions
from naiad.core.errors import RepositoryError
from naiad.core.signatures import TrustedKeys
from naiad.models.artifacts.copies import SignedCopies
from naiad.models.artifacts.policy import ArtifactPolicy, artifact_policy
from naiad.models.artifacts.repository import ArtifactRepository
from naiad.models.polling import Signature, Snapshot, is_ignored
from naiad.models.repository.layout import ModelFiles, RepositoryScan, combine, explain_no_model, visible_directories
from naiad.models.repository.remote import RemoteRepository
from naiad.sources.registry.references import is_reference
from naiad.sources.storage.opening import open_storage

_log = logging.getLogger("naiad.repository")


class Repository(Protocol):
    """One repository. All methods block."""

    @property
    def location(self) -> str:
        """Path or URI as given by the operator; with `--model-namespacing`, the namespace of its models."""

    @property
    def base_uri(self) -> str:
        """URI that environments with relative paths are below; empty if fetching a model brings them."""

    @property
    def directory(self) -> Path:
        """The directory of this machine that contains its models once they are fetched."""

    def model_names(self) -> list[str]: ...

    def known_model_names(self) -> list[str]:
        """As `model_names`, but fast and never an error: a remote repository returns its last listing."""

    def snapshot(self) -> Snapshot:
        """The signatures of all its models; raises as `model_names`."""

    def fetch(self, name: str, directory: Path | None = None) -> None:
        """Bring the files of a model up to date, in *directory* if it is given: one that `directory` was."""

    def has_directory(self, directory: Path) -> bool:
        """Whether `directory` is or was this one."""

    def close(self) -> None: ...


class LocalRepository:
    """A `Repository` in a directory of this machine, or in one that is mounted here."""

    base_uri = ""

    def __init__(self, directory: Path) -> None:
        self.location = str(directory)
        self.directory = directory
        self._listed: set[str] = set()
        self._skipped: set[tuple[str, str]] = set()

    def model_names(self) -> list[str]:
        names = []
        for directory in visible_directories(self.directory):
            # A model whose files were deleted stays one, so that it serves on until its directory is deleted, too.
            why = "" if directory.name in self._listed else explain_no_model(directory)
            if not why:
                names.append(directory.name)
            elif (directory.name, why) not in self._skipped:
                self._skipped.add((directory.name, why))
                _log.info("skip '%s', which is not a model: %s", directory, why)
        self._listed = set(names)
        return names

    def known_model_names(self) -> list[str]:
        try:
            return self.model_names()
        except RepositoryError:
            return []

    def snapshot(self) -> Snapshot:
        return {name: directory_signature(self.directory / name) for name in self.model_names()}

    def fetch(self, name: str, directory: Path | None = None) -> None:
        """Do nothing: the files are in place."""

    def has_directory(self, directory: Path) -> bool:
        return directory == self.directory

    def close(self) -> None: ...


class SignedRepository:
    """A `Repository` in a directory whose models must be signed: it lists that one, and serves copies of its files."""

    base_uri = ""

    def __init__(self, directory: Path, keys: TrustedKeys, store: Path) -> None:
        source, self._copies = LocalRepository(directory), SignedCopies(directory, keys, store)
        self.location = str(directory)
        self.directory = self._copies.directory
        self.model_names, self.known_model_names = source.model_names, source.known_model_names
        self.snapshot, self.close = source.snapshot, self._copies.close

    def fetch(self, name: str, directory: Path | None = None) -> None:  # noqa: ARG002 - the protocol's
        signer = self._copies.update(name)
        _log.info("model '%s' in %s is signed by '%s'", name, self.location, signer)

    def has_directory(self, directory: Path) -> bool:
        return directory == self.directory


class Repositories:
    """Repositories in order. All methods block.

    Other threads may call the reading methods while one thread adds or removes a repository: the lists are replaced,
    never changed.
    """

    def __init__(
        self, repositories: Iterable[Repository] = (), *, is_namespaced: bool = False, requires_signatures: bool = False
    ) -> None:
        # Whether each repository is a namespace, so that models of several may have the same name.
        self.is_namespaced = is_namespaced
        # Whether models that are in no repository are rejected: nothing signs them.
        self.requires_signatures = requires_signatures
        # A repository that was named twice counts once.
        self._repositories = list({each.location: each for each in repositories}.values())
        self._removed: list[Repository] = []
        self._aliases: dict[str, Mapping[str, str]] = {}

    def add(self, repository: Repository, names: Mapping[str, str] | None = None) -> None:
        """Add a repository. *names* maps names of its directories to the names that their models get instead."""
        self._aliases[repository.location] = names or {}
        self._repositories = [*self._repositories, repository]

    def remove(self, location: str) -> bool:
        """Remove a repository by its location; its loaded models stay loaded. Return whether it existed."""
        removed = [each for each in self._repositories if each.location == location]
        self._repositories = [each for each in self._repositories if each.location != location]
        self._removed += removed  # their loaded models still need the files
        self._aliases.pop(location, None)
        return bool(removed)

    @property
    def locations(self) -> Sequence[str]:
        return [each.location for each in self._repositories]

    def scan(self) -> RepositoryScan:
        return combine(self._files(each, name) for each in self._repositories for name in each.model_names())

    def known_models(self) -> list[ModelFiles]:
        """As `scan`, but fast and never an error: remote repositories return their last listing."""
        return [self._files(each, name) for each in self._repositories for name in each.known_model_names()]

    def snapshot(self) -> tuple[RepositoryScan, Snapshot]:
        """List all models, and their signatures by key. The snapshot leaves out models of several repositories."""
        snapshots = [(each, each.snapshot()) for each in self._repositories]
        found = combine(self._files(each, name) for each, snapshot in snapshots for name in snapshot)
        signatures: dict[str, Signature | None] = {}
        for repository, snapshot in snapshots:
            for name, signature in snapshot.items():
                key = self._files(repository, name).key
                if key in found.models:
                    signatures[key] = signature
        return found, signatures

    def fetch(self, files: ModelFiles) -> None:
        """Bring the files of a model to this machine. Files outside of all repositories are left as they are."""
        for repository in self._repositories:
            if repository.has_directory(files.repository):
                repository.fetch(files.directory.name, files.repository)
                return
        self.refuse_sent(files.name, "files")

    def refuse_sent(self, name: str, what: str) -> None:
        """Refuse a part of a model that came with a load request, if signatures are required."""
        if self.requires_signatures:
            raise RepositoryError(
                f"model '{name}' is refused: its {what} came with a load request, and --require-signature accepts "
                "models of signed repositories only"
            )

    def close(self) -> None:
        for repository in (*self._repositories, *self._removed):
            repository.close()

    def _files(self, repository: Repository, name: str) -> ModelFiles:
        alias = self._aliases.get(repository.location, {}).get(name)
        return ModelFiles(
            name=name if alias is None else alias,
            is_renamed=alias is not None,
            repository=repository.directory,
            directory=repository.directory / name,
            namespace=repository.location if self.is_namespaced else "",
            uri=f"{repository.base_uri}/{name}" if repository.base_uri else "",
        )


def open_repositories_of(options: ServerOptions) -> Repositories:
    """Open the repositories that a server's options name."""
    models = options.models
    return open_repositories(models.repositories, is_namespaced=models.is_namespaced, policy=artifact_policy(options))


def open_repositories(
    locations: Iterable[Path | str],
    *,
    is_namespaced: bool = False,
    environ: Mapping[str, str] | None = None,
    policy: ArtifactPolicy | None = None,
) -> Repositories:
    """Open repositories: a `Path` is a directory, a text a URI; *environ* has credentials (default: this process's)."""
    required_keys = None if policy is None else policy.required_keys
    environ = os.environ if environ is None else environ
    repositories: list[Repository] = []
    try:
        for location in locations:
            if isinstance(location, Path):
                repositories.append(local_repository(location, policy))
            elif policy is not None and is_reference(location):
                repositories.append(ArtifactRepository(location, policy))
            elif required_keys is not None:
                raise RepositoryError(
                    f"cannot use the repository {location} with --require-signature: signatures are of folders and of "
                    "repositories in registries; push it with `naiad push --key`"
                )
            else:
                repositories.append(RemoteRepository(open_storage(location, environ), environ))
    except BaseException:
        for repository in repositories:
            repository.close()
        raise
    return Repositories(repositories, is_namespaced=is_namespaced, requires_signatures=required_keys is not None)


def local_repository(directory: Path, policy: ArtifactPolicy | None) -> Repository:
    """A repository in a directory of this machine, with the signatures that are required."""
    if policy is None or policy.required_keys is None:
        return LocalRepository(directory.absolute())
    return SignedRepository(directory.absolute(), policy.required_keys, policy.store)


def directory_signature(directory: Path) -> Signature | None:
    """The signature of a model's directory; None if a file vanished during the walk or cannot be read."""
    signature: dict[str, tuple[object, ...]] = {}
    # A stack in place of recursion: there may be more folders than frames.
    waiting: list[tuple[Path, str, frozenset[tuple[int, int]]]] = [(directory, "", frozenset())]
    try:
        while waiting:
            here, prefix, parents = waiting.pop()
            status = here.stat()
            identity = status.st_dev, status.st_ino
            # Following a link to a parent directory would never end.
            if identity not in parents:
                below = parents | {identity}
                folders = _collect(here, prefix, signature)
                waiting += [(folder, f"{prefix}{folder.name}/", below) for folder in folders]
    except OSError:
        return None
    return signature


def _collect(directory: Path, prefix: str, signature: dict[str, tuple[object, ...]]) -> list[Path]:
    folders = []
    for entry in directory.iterdir():
        is_directory = entry.is_dir()
        if is_ignored(entry.name, is_directory=is_directory):
            continue
        if is_directory:
            # Without its modification time, which also changes with bytecode and files of editors.
            signature[f"{prefix}{entry.name}/"] = ()
            folders.append(entry)
        elif entry.is_symlink() and not entry.exists():
            signature[prefix + entry.name] = ("dangling", str(entry.readlink()))
        else:
            status = entry.stat()
            signature[prefix + entry.name] = (status.st_mtime_ns, status.st_size)
    return folders
