"""Wheels that tests make themselves: a stand-in for numpy, and packages with any content and requirements."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: Sequence[str] = (),
    python: str = "",
    metadata: str = "",
) -> Path:
    """Write a wheel of pure Python into a folder; equal contents give equal wheels. *metadata* is added to its own."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    metadata += f"Requires-Python: {python}\n" if python else ""
    contents = {**files, f"{stem}.dist-info/METADATA": metadata, f"{stem}.dist-info/WHEEL": WHEEL}
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in contents.items())
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(zipfile.ZipInfo(path), text)
        archive.writestr(zipfile.ZipInfo(f"{stem}.dist-info/RECORD"), record + f"{stem}.dist-info/RECORD,,\n")
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def offer_wheels(folder: Path) -> Path:
    """A folder with a stand-in for numpy, two versions of `adder`, and `counter`, which requires `adder`."""
    write_wheel(folder, "numpy", "0.1", {"numpy/__init__.py": '__version__ = "0.1"\n'})
    for version in ("1.0", "2.0"):
        write_wheel(folder, "adder", version, {"adder/__init__.py": f'VERSION = "{version}"\n'})
    write_wheel(folder, "counter", "1.0", {"counter.py": "import adder\n"}, requires=["adder>=1,<3"])
    return folder


def only_wheels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip and uv use no index, and this folder only."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def script(folder: Path, *dependencies: str, python: str = ">=3.10", name: str = "model.py") -> Path:
    """Write a script with a block."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ", ".join(f'"{line}"' for line in dependencies)
    path = folder / name
    path.write_text(
        f'# /// script\n# requires-python = "{python}"\n# dependencies = [{lines}]\n# ///\n', encoding="utf-8"
    )
    return path


def wheel_of_installed(folder: Path, package: str) -> Path:
    """Make a wheel of a package that is installed for this Python, from its own record of its files."""
    found = importlib.metadata.distribution(package)
    tags = re.findall(r"^Tag: (\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    files = [
        file for file in found.files or () if not file.parts[0].startswith("..") and "__pycache__" not in file.parts
    ]
    name = found.metadata["Name"].replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    tag = next((tag for tag in tags if tag.startswith("py3-")), tags[0])  # of `py2.py3-none-any`, the latter
    wheel = folder / f"{name}-{found.version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            if file.name not in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}:
                archive.write(str(file.locate()), str(file))
        names = archive.namelist()
        # A wheel need not have digests of its files; the lock has one of the whole.
        records = [f"{path},," for path in names]
        stem = next(path.partition("/")[0] for path in names if path.endswith(".dist-info/METADATA"))
        archive.writestr(f"{stem}/RECORD", "\n".join([*records, f"{stem}/RECORD,,"]) + "\n")
    return wheel
