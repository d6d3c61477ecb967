"""The packed environment of a demo: built once, and rebuilt when its recipe changes."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Callable

from naiad_building.build import build
from naiad_building.pack import pack
from naiad_building.uv_program import InstallOptions


def packed_environment(
    recipe: Path, work: Path, progress: Callable[[str], None], ending: str = ".tar.gz"
) -> dict[str, str]:
    """Build and pack the recipe into *work*, or reuse the result of an earlier run.

    Returns:
        Of the environment: `archive`, `python` (its version), and `recipe` (a digest of what it was built from).
    """
    note = work / f"{recipe.name}.json"
    digest = _digest(recipe)
    known = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    if known.get("recipe") == digest and Path(known["archive"]).is_file():
        return known
    note.unlink(missing_ok=True)
    prefix = work / recipe.name
    # Remove the unpacked copies of the previous environment.
    for old in (prefix, work / "store"):
        shutil.rmtree(old, ignore_errors=True)
    built = build(recipe, prefix, options=InstallOptions(progress=progress))
    progress("packing")
    packed = pack(prefix, work / f"{recipe.name}{ending}", force=True)
    known = {"archive": str(packed.archive), "python": built.version, "recipe": digest}
    # Written last, so that the next run after an interrupted one starts from the beginning.
    note.write_text(json.dumps(known), encoding="utf-8")
    return known


def _digest(recipe: Path) -> str:
    """Digest of the recipe's files and of the host's version, on which the recipe's Python depends."""
    total = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for path in sorted(recipe.rglob("*")):
        if path.is_file():
            total.update(f"{path.relative_to(recipe)}:{path.stat().st_size}:".encode())
            total.update(path.read_bytes())
    return total.hexdigest()
