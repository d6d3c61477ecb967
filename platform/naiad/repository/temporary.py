"""Temporary folders for models that lie elsewhere, or that came with a request."""

from __future__ import annotations

import tempfile
from pathlib import Path

from naiad.errors import RepositoryError

__all__ = ["temporary_folder"]


def temporary_folder(prefix: str, parent: str | None = None) -> Path:
    """A new folder that is the caller's to delete.

    Raises:
        RepositoryError: If none can be made, as where a whole system may only be read.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise RepositoryError(
            f"cannot make a temporary folder{f' in {parent}' if parent else ''}: {error.strerror or error}; "
            f"{'make that one that can be written' if parent else 'name a folder that can be written by TMPDIR'}"
        ) from error
