"""A channel of conda packages in a folder: a Python and a small package, made here, for no network at all."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

from environments import makers

SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(platform.machine(), "noarch")
# conda writes the new prefix over it, in binaries too: as long as conda's own.
_PLACEHOLDER = "/opt/placeholder" + "_hold" * 40

_POST_LINK = b"""set -e
echo "$PKG_NAME $PKG_VERSION for $(python -c 'import sys; print(sys.prefix)')" > "$PREFIX/share/teller/linked.txt"
echo "teller was linked" > "$PREFIX/.messages.txt"
"""


def make_channel(folder: Path, minor: str, *, whole: bool = False) -> Path:
    """A channel of a Python, of `teller`, which writes the prefix into a text and a binary, and of a stand-in for numpy.

    Args:
        folder: The folder.
        minor: The version of `python`.
        whole: Whether it has the parts of the standard library that pip imports.
    """
    made = makers.make_environment(folder.with_name("for-channel"), minor, numpy=False, whole=whole)
    files = {
        str(path.relative_to(made)): path
        for path in sorted(made.rglob("*"))
        if (path.is_symlink() or path.is_file()) and path.parent.name != "etc" and path.name != "where"
    }
    site_packages = {"python_site_packages_path": f"lib/python{minor}/site-packages"}
    packages = dict([_package(folder, "python", f"{minor}.0", files, {}, site_packages)])
    texts = {
        "share/teller/where.txt": ("text", f"in {_PLACEHOLDER}\n".encode()),
        "share/teller/where.bin": ("binary", b"\0" + _PLACEHOLDER.encode() + b"\0\xff"),
        "bin/teller": ("text", f"#!{_PLACEHOLDER}/bin/python\nimport sys\nprint(sys.prefix)\n".encode()),
    }
    texts["etc/conda/activate.d/teller.sh"] = ("text", b"export TELLER_DATA=$CONDA_PREFIX/share/teller\n")
    texts["bin/.teller-post-link.sh"] = ("text", _POST_LINK)
    packages.update([_package(folder, "teller", "1.0", {}, texts, {"depends": ["python"]})])
    numpy = {f"lib/python{minor}/site-packages/numpy/__init__.py": ("text", makers.STAND_IN.encode())}
    packages.update([_package(folder, "numpy", "0.1", {}, numpy, {"depends": [f"python {minor}.*"]})])
    for subdir, content in ((SUBDIR, packages), ("noarch", {})):
        (folder / subdir).mkdir(parents=True, exist_ok=True)
        index = {"info": {"subdir": subdir}, "packages": content, "packages.conda": {}, "repodata_version": 1}
        (folder / subdir / "repodata.json").write_text(json.dumps(index))
    return folder


def _package(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, Path],
    texts: dict[str, tuple[str, bytes]],
    more: dict[str, Any],
) -> tuple[str, dict[str, Any]]:
    """Write a package; its file name, and what the channel's index says of it."""
    index = {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "subdir": SUBDIR,
        "depends": [],
        **more,
    }
    paths = [
        {"_path": path, "path_type": "softlink" if file.is_symlink() else "hardlink"} for path, file in files.items()
    ]
    paths += [
        {"_path": path, "path_type": "hardlink", "file_mode": mode, "prefix_placeholder": _PLACEHOLDER}
        for path, (mode, _) in texts.items()
    ]
    archive = folder / SUBDIR / f"{name}-{version}-0.tar.bz2"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:bz2", compresslevel=1) as tar:
        _add(tar, "info/index.json", json.dumps(index).encode())
        _add(tar, "info/paths.json", json.dumps({"paths_version": 1, "paths": paths}).encode())
        _add(tar, "info/files", "".join(f"{path['_path']}\n" for path in paths).encode())
        for path, (_, content) in texts.items():
            _add(tar, path, content)
        for path, file in files.items():
            tar.add(file, path, recursive=False)
    content = archive.read_bytes()
    digests = {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}
    return archive.name, {**index, **digests, "size": len(content)}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = makers.member(name, mode=0o755 if name.startswith("bin/") else 0o644)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
