"""`naiad env list`: what the store of environments holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from naiad.environments import jsonfile
from naiad.resolution.tables import text_table

__all__ = ["list_environments"]

_DIGEST_SHOWN = 12


def list_environments(store: Path) -> str:
    """A table of the environments that are ready in a store, by the archive they came from."""
    records = ((path.parent.name, jsonfile.read(path)) for path in store.glob("*/ready.json"))
    rows = sorted(_row(digest, record) for digest, record in records if record is not None)
    if not rows:
        return f"no environments in {store}\n"
    return f"environments in {store}\n" + text_table(("Archive", "Python", "numpy", "Platform", "Digest"), rows)


def _row(digest: str, record: dict[str, Any]) -> tuple[str, ...]:
    interpreter = record.get("interpreter", {})
    version = ".".join(map(str, interpreter.get("version", ("?",))))
    return (
        str(record.get("archive", "?")),
        version,
        str(interpreter.get("numpy") or "none"),
        str(interpreter.get("platform", "?")),
        digest[:_DIGEST_SHOWN],
    )
