"""The operator's rules for environments, from the server's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.env_build import EnvBuild
from naiad.config.server.options import ServerOptions
from naiad.core.signatures import TrustedKeys, read_trusted_keys
from naiad.environments.store.pulled import artifacts_folder, copies_folder

# Folder of a model repository with its environments; `naiad push` writes it.
_REPOSITORY_ENVIRONMENTS = (".naiad", "environments")
_DEPTH = 5  # parts of an archive's path below the folder of signed repositories


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePolicy:
    """Rules for archives and the store."""

    max_bytes: int = 0
    trust: TrustedKeys | None = None  # keys that may sign archives; None if signatures are not required
    require_digest: bool = False
    build: EnvBuild = EnvBuild.LOCKED
    offline: bool = False
    # Whether a warning says that a URI without a digest has another content now than at its first use, which is
    # compared in the background.
    reports_changed: bool = False
    wheels: tuple[Path, ...] = ()
    # Names, or patterns, of the server's variables that guests inherit; None for all.
    guest_variables: tuple[str, ...] | None = None
    # Folders with files of signed repositories only. An archive in the hidden folder of a repository there needs no
    # signature of its own: that of the repository covers it.
    signed_folders: tuple[Path, ...] = ()

    def keys_for(self, archive: Path) -> TrustedKeys | None:
        if any(_is_environment_below(folder, archive) for folder in self.signed_folders):
            return None
        return self.trust


def store_policy(options: ServerOptions) -> StorePolicy:
    """The policy for these options."""
    trusted_keys = options.environments.trusted_keys
    return StorePolicy(
        max_bytes=options.environments.store_max_bytes,
        trust=None if trusted_keys is None else read_trusted_keys(trusted_keys),
        require_digest=options.environments.require_digest,
        build=options.environments.build or EnvBuild.LOCKED,
        offline=options.environments.is_offline,
        reports_changed=not options.environments.is_offline,
        wheels=options.environments.wheels,
        guest_variables=options.guests.environ,
        signed_folders=_signed_folders(options) if options.models.requires_signature else (),
    )


def _signed_folders(options: ServerOptions) -> tuple[Path, ...]:
    store = options.environments.store.expanduser().absolute()
    return (artifacts_folder(store) / "repositories", copies_folder(store))


def _is_environment_below(folder: Path, archive: Path) -> bool:
    """Whether an archive is `<folder>/<repository>/.naiad/environments/<name>/<archive>`, however both paths are named.

    Nothing below *folder* may be a link: its target would not be signed.
    """
    place = archive.parts[-_DEPTH:]
    if len(place) < _DEPTH or place[1:3] != _REPOSITORY_ENVIRONMENTS or ".." in place:
        return False
    inner = (archive, *archive.parents[: _DEPTH - 1])
    try:
        return not any(path.is_symlink() for path in inner) and archive.parents[_DEPTH - 1].samefile(folder)
    except OSError:
        return False
