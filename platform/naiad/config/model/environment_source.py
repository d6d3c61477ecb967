"""What names an execution environment: a path or a URI, and perhaps the digest its content must have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from naiad.errors import ConfigError

__all__ = ["ENVIRONMENT_SCHEME", "EnvironmentSource", "is_uri", "shown", "split_digest"]

ENVIRONMENT_SCHEME = "env://"
"""Begins the name of an environment that lies in an `--env-directory`."""

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_PIN = re.compile(r"(?P<name>.*)@(?P<algorithm>sha\d+):(?P<digest>[^@/]*)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSource:
    """Where an environment comes from, if more is to be said than a path.

    Attributes:
        path: An archive or a directory of this machine; None if it lies elsewhere.
        uri: Where else, empty if it lies here.
        digest: SHA-256 its archive must have, empty if nobody said.
        follows: Whether the content of a URI may change from one load to the next, as that of a model may: it lies in
            the model's own repository.
    """

    path: Path | None = None
    uri: str = ""
    digest: str = ""
    follows: bool = False

    def __str__(self) -> str:
        return f"{self.path or shown(self.uri)}{f'@sha256:{self.digest}' if self.digest else ''}"


def shown(uri: str) -> str:
    """A URI without what may be secret: credentials and the query, where signed links keep theirs."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")) if parts.scheme in ("http", "https") else uri


def is_uri(text: str) -> bool:
    """Whether a text is a URI and not a path."""
    return _URI.match(text) is not None


def split_digest(text: str) -> tuple[str, str]:
    """A name and the digest behind it, empty if there is none: `x@sha256:<64 digits>`.

    Raises:
        ConfigError: If what stands behind is no SHA-256.
    """
    match = _PIN.fullmatch(text)
    if match is None:
        return text, ""
    digest = match["digest"].lower()
    if match["algorithm"] != "sha256" or not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"'{text}': '{match['algorithm']}:{match['digest']}' is no digest; write @sha256: and 64 hexadecimal "
            "digits, as `sha256sum` and `naiad env inspect` print them"
        )
    return match["name"], digest
