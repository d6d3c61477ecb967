"""What is installed in an environment, with digests that depend on neither its place nor its time."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
from collections.abc import Iterator
from pathlib import Path

from naiad.environments.archives.manifest import Package

__all__ = ["list_packages", "normalize_record", "site_folders"]


def site_folders(prefix: Path) -> list[Path]:
    """The folders of an environment that packages are installed in."""
    # Debian's Python keeps packages in `lib/python3/dist-packages`.
    return [
        folder
        for kind in ("site", "dist")
        for folder in sorted(prefix.glob(f"lib*/python*/{kind}-packages"))
        if not folder.parent.parent.is_symlink()
    ]


def list_packages(prefix: Path) -> tuple[Package, ...]:
    """Every package of an environment: those of wheels, and those of conda that are not the same."""
    wheels = list(_wheels(prefix))
    names = {_normal(package.name) for package in wheels}
    conda = (package for package in _conda_packages(prefix) if _normal(package.name) not in names)
    return tuple(sorted((*wheels, *conda), key=lambda package: (package.name.lower(), package.version)))


def normalize_record(record: str) -> str:
    """A RECORD of a wheel without what differs from one place to the next: scripts begin with a path of theirs."""
    rows = []
    for row in csv.reader(io.StringIO(record)):
        if len(row) == 3 and (row[0].startswith("../") or row[0].endswith(".pyc")):  # noqa: PLR2004 - path, digest, size
            rows.append([row[0], "", ""])
        else:
            rows.append(row)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue()


def _wheels(prefix: Path) -> Iterator[Package]:
    for found in importlib.metadata.distributions(path=[str(folder) for folder in site_folders(prefix)]):
        record = found.read_text("RECORD")
        if found.metadata["Name"]:  # a folder that somebody emptied by hand has no name any more
            digest = hashlib.sha256(normalize_record(record).encode()).hexdigest() if record else ""
            yield Package(name=found.name, version=found.version, digest=digest, source="python")


def _conda_packages(prefix: Path) -> Iterator[Package]:
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            name, version = str(record["name"]), str(record["version"])
        except (OSError, KeyError, TypeError, ValueError):
            continue  # conda-pack has its own words for what is wrong with a record
        yield Package(name=name, version=version, digest=str(record.get("sha256") or ""), source="conda")


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
