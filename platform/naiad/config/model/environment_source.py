"""The source of an execution environment: a path or a URI, with an optional digest of its content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from naiad.core.errors import ConfigError

ENVIRONMENT_SCHEME = "env://"  # scheme of an environment in an `--env-directory`

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# In a URI of a registry everything before the host is a secret. Elsewhere a user without a password is not secret, as
# in `abfs://container@account`.
_SECRETS = (
    re.compile(r"(oci://)(?:[^/@\s]*|[^/@:\s]*:\S*)@(?!(?:sha|md)-?\d+:)", re.IGNORECASE),
    re.compile(r"([a-z][a-z0-9+.-]*://)[^/@:\s]*:[^/@\s]*@(?!(?:sha|md)-?\d+:)", re.IGNORECASE),
)
_PIN = re.compile(r"(?P<name>.*)@(?P<algorithm>(sha|md)-?\d+):(?P<digest>[^@/]*)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSource:
    """The source of an environment that is remote, has a digest, or is named by its interpreter."""

    path: Path | None = None  # an archive, a directory or an interpreter of this machine; None for a remote one
    uri: str = ""
    digest: str = ""  # required SHA-256 of the archive; empty if none was given
    # Whether the content of the URI may change between loads, because it is in the model's repository.
    is_mutable: bool = False
    is_interpreter: bool = False

    def __str__(self) -> str:
        return f"{self.path or redact(self.uri)}{f'@sha256:{self.digest}' if self.digest else ''}"


def redact(uri: str) -> str:
    """A URI, or a flag with one, for logs and errors: without credentials and the query, which may be a signature."""
    if not uri.lower().startswith(("http://", "https://")):
        for secret in _SECRETS:
            uri = secret.sub(r"\1", uri)
        return uri
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_uri(text: str) -> bool:
    """Whether a text is a URI rather than a path."""
    return _URI.match(text) is not None


def split_digest(text: str) -> tuple[str, str]:
    """Split `NAME@sha256:<64 digits>` into name and digest; the digest is empty if the text has none."""
    match = _PIN.fullmatch(text)
    if match is None:
        return text, ""
    digest = match["digest"].lower()
    if match["algorithm"] != "sha256" or not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"'{text}': '{match['algorithm']}:{match['digest']}' is not a digest; write @sha256: and 64 hexadecimal "
            "digits, as `sha256sum` and `naiad env inspect` print them"
        )
    return match["name"], digest
