"""TLS of a service: files of its flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.given import GivenFlags

__all__ = ["TlsFiles", "parse_tls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where a service's certificates are.

    Attributes:
        certificate: The server's certificate, with those between it and its root.
        key: Its private key.
        root: Certificates that those of clients must stem from.
        is_mutual: Whether clients must have certificates.
    """

    certificate: Path
    key: Path
    root: Path | None = None
    is_mutual: bool = False


def parse_tls(given: GivenFlags, service: str) -> TlsFiles | None:
    """The files for `grpc` or `http`; None where the service uses no TLS.

    Raises:
        UsageError: If one is needed and not named.
    """
    flag = f"{service}-use-ssl"
    is_mutual = given.switch(f"{flag}-mutual")
    if not is_mutual and not given.switch(flag):
        return None
    needed = ["server-cert", "server-key", *(["root-cert"] if is_mutual else [])]
    for name in needed:
        if not given.text(f"{service}-{name}"):
            asked = f"{flag}-mutual" if is_mutual else flag
            raise given.bad(asked, f"--{asked} needs --{service}-{name}, the file of it in PEM format")
    root = given.text(f"{service}-root-cert")
    return TlsFiles(
        certificate=Path(given.text(f"{service}-server-cert")),
        key=Path(given.text(f"{service}-server-key")),
        root=Path(root) if root else None,
        is_mutual=is_mutual,
    )
