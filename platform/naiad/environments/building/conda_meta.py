"""The record that makes a built prefix a conda environment in conda-pack's eyes.

conda-pack copies files that a record names as they are, and looks through all others for the prefix, to have
`conda-unpack` rewrite them one by one at their destination. Recording the interpreter keeps that list short, and
keeps its bytecode: bytecode beside a recorded source is left out of the archive unless it is recorded too.
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
    """Record every file now in `prefix` as conda's package `python`; how many files.

    Files that come later (what pip installs) stay unrecorded, as in any conda environment.
    """
    entries = [_entry(prefix, path) for path in _paths(prefix)]
    # conda-pack looks for a package's list in `<link.source>/info/` and takes the files from `link.source`. A package
    # cache would hold all of them twice; the prefix itself serves as well.
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
    """Mark a prefix as whole: conda keeps a history in every environment, and nothing without one is packed."""
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
