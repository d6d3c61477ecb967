"""The packages installed in an environment, with digests independent of its folder and time."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.metadata
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from naiad.core.foreign_json import read_json
from naiad.environments.archives.manifest import Package

_EDITABLE = re.compile(r"^__editable__[_.]*|_finder$")
_QUOTED_PATH = re.compile(r"'(/[^']+)'")


def site_folders(prefix: Path) -> list[Path]:
    """The folders of an environment that contain installed packages."""
    # Debian's Python keeps packages in `lib/python3/dist-packages`.
    return [
        folder
        for kind in ("site", "dist")
        for folder in sorted(prefix.glob(f"lib*/python*/{kind}-packages"))
        if not folder.parent.parent.is_symlink()
    ]


def list_packages(prefix: Path) -> tuple[Package, ...]:
    """All packages of an environment: wheels, and conda packages that are not wheels too."""
    wheels = list(_wheels(prefix))
    names = {canonicalize_name(package.name) for package in wheels}
    conda = (package for package in _conda_packages(prefix) if canonicalize_name(package.name) not in names)
    return tuple(sorted((*wheels, *conda), key=lambda package: (package.name.lower(), package.version)))


def normalize_record(record: str) -> str:
    """A wheel's RECORD without digests of scripts and bytecode: scripts contain the path of the interpreter."""
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
        if found.metadata["Name"]:  # an emptied folder has no metadata
            digest = hashlib.sha256(normalize_record(record).encode()).hexdigest() if record else ""
            yield Package(name=found.name, version=found.version, digest=digest, source="python")


def _conda_packages(prefix: Path) -> Iterator[Package]:
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        with contextlib.suppress(OSError):
            package = conda_package(file.read_bytes())
            if package is not None:  # else conda-pack will report the invalid record
                yield package


def conda_package(record: bytes) -> Package | None:
    """The package that a record of conda is of; None if the record is malformed."""
    try:
        value = read_json(record)
        name, version, digest = str(value["name"]), str(value["version"]), str(value.get("sha256") or "")
    except (KeyError, TypeError, ValueError):
        return None
    return Package(name=name, version=version, digest=digest, source="conda")


def editable_remains(site_dirs: Iterable[str]) -> list[str]:
    """What editable installs have left in folders of packages, files that name code elsewhere, as sentences."""
    found = []
    for folder in map(Path, site_dirs):
        files = (*folder.glob("*.pth"), *folder.glob("*.egg-link"), *folder.glob("__editable__*_finder.py"))
        for file in sorted(files):
            missing = next((path for path in _named_folders(file) if not Path(path).exists()), "")
            if missing:
                name = _EDITABLE.sub("", file.stem).strip("_").partition("-")[0]
                found.append(
                    f"has the remains of an editable install of '{name}': {file.name} names {missing}, which is not "
                    "here, so its modules cannot be imported; install it without --editable where the environment is "
                    "made"
                )
    return found


def _named_folders(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if file.suffix == ".py":
        yield from _QUOTED_PATH.findall(text)
    else:
        yield from (line.strip() for line in text.splitlines() if line.startswith("/"))
