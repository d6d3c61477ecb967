"""Writing the records that conda-pack requires of a conda environment.

conda-pack copies files of recorded packages unchanged. It searches all other files for the prefix, and lists them for
`conda-unpack` to rewrite after unpacking. Recording the interpreter's files keeps that list short. It also keeps their
bytecode: conda-pack leaves out bytecode beside a recorded source unless the bytecode is recorded too.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["CHANNEL", "record_interpreter", "write_history"]

CHANNEL = "naiad"

_SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64", "ppc64le": "linux-ppc64le"}


def record_interpreter(prefix: Path, version: str) -> int:
    """Record every file in *prefix* as conda's package `python`; returns the number of files.

    Files added later, such as those of pip, stay unrecorded, as in any conda environment.
    """
    entries = [_entry(prefix, path) for path in _paths(prefix)]
    # conda-pack reads a package's file list in `<link.source>/info/` and its files below `link.source`, normally a
    # package cache. The prefix itself works too, and avoids a second copy of all files.
    entries.append({"_path": "info/paths.json", "path_type": "hardlink"})
    paths = {"paths_version": 1, "paths": entries}
    _write(prefix / "info" / "paths.json", paths)
    build = f"python-{version}-0"
    record = {
        "name": "python",
        "version": version,
        "build": "0",
        "build_number": 0,
        "channel": CHANNEL,
        "subdir": _SUBDIRS.get(platform.machine(), f"linux-{platform.machine()}"),
        "fn": f"{build}.tar.bz2",
        "url": f"{CHANNEL}://local/{build}.tar.bz2",
        "depends": [],
        "constrains": [],
        "license": "PSF-2.0",
        "files": [entry["_path"] for entry in entries],
        "link": {"source": str(prefix), "type": 1},
    }
    _write(prefix / "conda-meta" / f"{build}.json", record)
    return len(entries)


def write_history(prefix: Path, version: str) -> None:
    """Mark a prefix as complete: conda-pack requires a history in every environment."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    build = f"python-{version}-0"
    text = f"==> {now} <==\n# cmd: naiad env build\n+{CHANNEL}::{build}\n# update specs: ['python={version}']\n"
    (prefix / "conda-meta" / "history").write_text(text, encoding="utf-8")


def _entry(prefix: Path, path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"_path": str(path.relative_to(prefix)), "path_type": "hardlink"}
    if path.is_symlink():
        return {**entry, "path_type": "softlink"}
    data = path.read_bytes()
    if b"\0" not in data and os.fsencode(prefix) in data:
        entry.update(file_mode="text", prefix_placeholder=str(prefix))
    return entry


def _paths(prefix: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(prefix):
        yield from sorted(Path(folder, name) for name in names)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
