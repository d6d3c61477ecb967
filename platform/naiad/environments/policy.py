"""The operator's rules for environments, from the server's options."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.server.options import ServerOptions
from naiad.environments.archives.signatures import TrustedKeys, read_trusted_keys

__all__ = ["StorePolicy", "store_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePolicy:
    """Rules for archives and the store.

    Attributes:
        max_bytes: Size of the store above which unused entries are removed; 0 for no limit.
        trust: Keys that may sign archives; None if signatures are not required.
        require_digest: Whether remote archives must be pinned with `@sha256:`.
    """

    max_bytes: int = 0
    trust: TrustedKeys | None = None
    require_digest: bool = False


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
    )
