"""The digest of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PIECE = 1 << 20


def file_digest(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Reads it in pieces."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as content:
        while piece := content.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
