"""What an operator allows of environments, and reading it from a server's options."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.server.options import ServerOptions
from naiad.environments.archives.signatures import TrustedKeys, read_trusted_keys

__all__ = ["StorePolicy", "store_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePolicy:
    """What is allowed.

    Attributes:
        max_bytes: Size above which entries that nobody uses are removed; 0 for any.
        trust: Whose signatures an archive needs; None if it needs none.
        require_digest: Whether what comes from elsewhere must be named with its digest.
    """

    max_bytes: int = 0
    trust: TrustedKeys | None = None
    require_digest: bool = False


def store_policy(options: ServerOptions) -> StorePolicy:
    """The policy that options stand for.

    Raises:
        ExecutionEnvironmentError: If the trusted keys cannot be read.
    """
    trusted_keys = options.environments.trusted_keys
    return StorePolicy(
        max_bytes=options.environments.store_max_bytes,
        trust=None if trusted_keys is None else read_trusted_keys(trusted_keys),
        require_digest=options.environments.require_digest,
    )
