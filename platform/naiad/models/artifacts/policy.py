"""How a server or a command uses artifacts: where they are stored, and whose signatures they need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.options import ServerOptions
from naiad.core.signatures import TrustedKeys, read_trusted_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPolicy:
    """Rules for repositories in registries."""

    store: Path
    # One of these keys must have signed a repository; None if no signature is required.
    required_keys: TrustedKeys | None = None
    max_bytes: int = 0


def artifact_policy(options: ServerOptions) -> ArtifactPolicy:
    """The policy for a server's options."""
    environments = options.environments
    keys = environments.trusted_keys if options.models.requires_signature else None
    return ArtifactPolicy(
        store=environments.store.expanduser().absolute(),
        required_keys=None if keys is None else read_trusted_keys(keys),
        max_bytes=environments.store_max_bytes,
    )
