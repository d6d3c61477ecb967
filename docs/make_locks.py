"""Writes the locks of backends that ship with naiad: `.venv/bin/python docs/make_locks.py [BACKEND...]`.

The lock of a backend whose `model.py` declares packages is `pylock.toml` beside it, for Linux and macOS and all
versions of Python that the block accepts. uv resolves, with the indexes that it is configured for. Names, versions and
digests are kept, and not where files came from: naiad installs from the indexes of the machine that it runs on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from naiad.config.model.declared_environment import read_script_block

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BACKENDS = Path(__file__).parents[1] / "backends"
_PLATFORMS = ("manylinux", "linux", "macosx", "any")
_MACHINES = ("x86_64", "aarch64", "arm64", "universal2", "any")


def lock(backend: Path) -> str:
    """The text of the lock of a backend."""
    code = (backend / "model.py").read_text(encoding="utf-8")
    block = read_script_block(code, str(backend))
    assert block is not None, f"{backend} declares no packages"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "model.py")
        script.write_text(code, encoding="utf-8")
        # Its own `uv.lock` would be a lock of whatever was locked before.
        command = ["uv", "export", "--quiet", "--no-header", "--script", str(script), "--format", "pylock.toml"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    table = tomllib.loads(done.stdout)
    lines = [
        "# Written by docs/make_locks.py. Files have no URLs: naiad takes them from the machine's own indexes.",
        f"lock-version = {json.dumps(table['lock-version'])}",
        'created-by = "uv"',
        f"requires-python = {json.dumps(table['requires-python'])}",
    ]
    for package in table["packages"]:
        lines += ["", "[[packages]]"]
        lines += [f"{key} = {json.dumps(package[key])}" for key in ("name", "version", "marker") if key in package]
        lines += ["wheels = [", *(f"    {_file(wheel)}," for wheel in package["wheels"] if _is_of_platform(wheel)), "]"]
    requirements = "".join(f"    {json.dumps(str(one))},\n" for one in block.dependencies)
    return "\n".join(lines) + f"\n\n[tool.naiad]\nrequirements = [\n{requirements}]\n"


def _name(wheel: dict[str, Any]) -> str:
    return unquote(urlsplit(wheel["url"]).path.rpartition("/")[2])


def _is_of_platform(wheel: dict[str, Any]) -> bool:
    platform = _name(wheel).removesuffix(".whl").rpartition("-")[2]
    return platform.startswith(_PLATFORMS) and platform.endswith(_MACHINES)


def _file(wheel: dict[str, Any]) -> str:
    return f"{{ path = {json.dumps(_name(wheel))}, hashes = {{ sha256 = {json.dumps(wheel['hashes']['sha256'])} }} }}"


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.parent.name for path in BACKENDS.glob("*/pylock.toml")):
        (BACKENDS / name / "pylock.toml").write_text(lock(BACKENDS / name), encoding="utf-8")
