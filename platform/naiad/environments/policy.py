"""The operator's rules for environments, from the server's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.env_build import EnvBuild
from naiad.config.server.options import ServerOptions
from naiad.environments.archives.signatures import TrustedKeys, read_trusted_keys

__all__ = ["REPOSITORY_ENVIRONMENTS", "StorePolicy", "store_policy"]

REPOSITORY_ENVIRONMENTS = "/.naiad/environments/"
"""Folder of a model repository with its environments; `naiad push` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePolicy:
    """Rules for archives and the store.

    Attributes:
        max_bytes: Size of the store above which unused entries are removed; 0 for no limit.
        trust: Keys that may sign archives; None if signatures are not required.
        require_digest: Whether remote archives must be pinned with `@sha256:`.
        build: What may be done for environments that are declared by requirements.
        offline: Whether nothing is downloaded.
        reports_changed: Whether a warning says that a URI without a digest has another content now than at its first
            use, which is compared in the background.
        wheels: Folders with wheels to install from.
        trusts_signed_repositories: Whether an archive in the hidden folder of a model repository needs no signature of
            its own, because the server requires that of the repository, which covers its environments.
    """

    max_bytes: int = 0
    trust: TrustedKeys | None = None
    require_digest: bool = False
    build: EnvBuild = EnvBuild.LOCKED
    offline: bool = False
    reports_changed: bool = False
    wheels: tuple[Path, ...] = ()
    trusts_signed_repositories: bool = False

    def keys_for(self, archive: Path) -> TrustedKeys | None:
        """The keys that a local archive may be signed with; None if it needs no signature."""
        if self.trusts_signed_repositories and REPOSITORY_ENVIRONMENTS in f"{archive.parent}/":
            return None
        return self.trust


def store_policy(options: ServerOptions) -> StorePolicy:
    """The policy for these options.

    Raises:
        ExecutionEnvironmentError: If the trusted keys cannot be read.
    """
    trusted_keys = options.environments.trusted_keys
    return StorePolicy(
        max_bytes=options.environments.store_max_bytes,
        trust=None if trusted_keys is None else read_trusted_keys(trusted_keys),
        require_digest=options.environments.require_digest,
        build=options.environments.build or EnvBuild.LOCKED,
        offline=options.environments.is_offline,
        reports_changed=not options.environments.is_offline,
        wheels=options.environments.wheels,
        trusts_signed_repositories=options.models.requires_signature,
    )
