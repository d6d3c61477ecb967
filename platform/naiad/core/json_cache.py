"""Small JSON files with cached results. A lost file costs time, never correctness."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from naiad.core.foreign_json import read_json


def read(path: Path) -> dict[str, Any] | None:
    """The object in the file, or None if it is absent, unreadable or not a JSON object."""
    try:
        value = read_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write(path: Path, value: dict[str, Any]) -> None:
    """Write the file atomically: readers see either the old object or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = f"{path.parent}/.{path.name}.{secrets.token_hex(8)}"
    # Not by `mkstemp`, whose files are for their owner alone: servers of other users read a store that root has filled.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 - `temporary` is a string
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def name_for(key: str) -> str:
    """A file name for *key*, which may contain any characters."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40] + ".json"
