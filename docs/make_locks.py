"""Writes the locks of backends that ship with naiad: `.venv/bin/python docs/make_locks.py [BACKEND...] [--cpu PAGE]`.

The lock of a backend whose `model.py` declares packages is `pylock.toml` beside it, for Linux and macOS and all
versions of Python that the block accepts. uv resolves, with the indexes that it is configured for. Names, versions and
digests are kept, and not where files came from: naiad installs from the indexes of the machine that it runs on.

A backend with PyTorch has a second one, `pylock.cpu.toml`: the same packages of the same versions, with PyTorch's build
for processors alone on Linux, and without what only its build for CUDA needs. The default index has none of these
builds. PAGE is the address of the page of an index that lists them with digests; without it, those that the lock has
already are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from naiad.config.model.declared_environment import read_script_block

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BACKENDS = Path(__file__).parents[1] / "backends"
CPU_LOCK = "pylock.cpu.toml"
_TORCH = "torch"
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
    return _text(table, table["packages"], block.dependencies)


def lock_for_processors(backend: Path, text: str, page: str) -> str:
    """The text of the second lock of a backend with PyTorch.

    Args:
        backend: Its folder.
        text: Its first lock.
        page: Address of the page that lists the builds; empty to keep those of the present lock.
    """
    table = tomllib.loads(text)
    torch = next(each for each in table["packages"] if each["name"] == _TORCH)
    version = f"{torch['version']}+cpu"
    if page:
        wheels = _listed_wheels(page, version)
    else:
        present = tomllib.loads((backend / CPU_LOCK).read_text(encoding="utf-8"))
        wheels = next(each for each in present["packages"] if each.get("version") == version)["wheels"]
    # What the build for CUDA needs beyond the others is needed on Linux alone.
    packages = [
        each
        for each in table["packages"]
        if each is not torch and "sys_platform == 'linux'" not in each.get("marker", "")
    ]
    packages += [
        {**torch, "marker": "sys_platform != 'linux'", "wheels": [w for w in torch["wheels"] if "macosx" in _name(w)]},
        {"name": _TORCH, "version": version, "marker": "sys_platform == 'linux'", "wheels": wheels},
    ]
    return _text(table, sorted(packages, key=lambda each: each["name"]), table["tool"]["naiad"]["requirements"])


def _listed_wheels(page: str, version: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(page) as answer:  # noqa: S310 - whoever runs this names the page
        listed = answer.read().decode()
    found = re.findall(rf"({_TORCH}-{re.escape(quote(version))}-[\w.%-]+\.whl)#sha256=([0-9a-f]{{64}})", listed)
    assert found, f"{page} lists no wheels of {_TORCH} {version} with digests"
    wheels = [{"path": unquote(name), "hashes": {"sha256": digest}} for name, digest in dict(found).items()]
    # Builds for Pythons without the global lock have a tag of their own.
    return [wheel for wheel in wheels if _is_of_platform(wheel) and not re.search(r"cp\d+t-", wheel["path"])]


def _text(table: dict[str, Any], packages: list[dict[str, Any]], dependencies: Iterable[object]) -> str:
    lines = [
        "# Written by docs/make_locks.py. Files have no URLs: naiad takes them from the machine's own indexes.",
        f"lock-version = {json.dumps(table['lock-version'])}",
        'created-by = "uv"',
        f"requires-python = {json.dumps(table['requires-python'])}",
    ]
    for package in packages:
        lines += ["", "[[packages]]"]
        lines += [f"{key} = {json.dumps(package[key])}" for key in ("name", "version", "marker") if key in package]
        lines += ["wheels = [", *(f"    {_file(wheel)}," for wheel in package["wheels"] if _is_of_platform(wheel)), "]"]
    requirements = "".join(f"    {json.dumps(str(one))},\n" for one in dependencies)
    return "\n".join(lines) + f"\n\n[tool.naiad]\nrequirements = [\n{requirements}]\n"


def _name(wheel: dict[str, Any]) -> str:
    return unquote(urlsplit(wheel.get("url") or wheel["path"]).path.rpartition("/")[2])


def _is_of_platform(wheel: dict[str, Any]) -> bool:
    platform = _name(wheel).removesuffix(".whl").rpartition("-")[2]
    return platform.startswith(_PLATFORMS) and platform.endswith(_MACHINES)


def _file(wheel: dict[str, Any]) -> str:
    return f"{{ path = {json.dumps(_name(wheel))}, hashes = {{ sha256 = {json.dumps(wheel['hashes']['sha256'])} }} }}"


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backends", nargs="*")
    parser.add_argument("--cpu", default="", metavar="PAGE")
    given = parser.parse_args()
    for name in given.backends or sorted(path.parent.name for path in BACKENDS.glob("*/pylock.toml")):
        folder = BACKENDS / name
        text = lock(folder)
        (folder / "pylock.toml").write_text(text, encoding="utf-8")
        if any(each["name"] == _TORCH for each in tomllib.loads(text)["packages"]):
            (folder / CPU_LOCK).write_text(lock_for_processors(folder, text, given.cpu), encoding="utf-8")


if __name__ == "__main__":
    _main()
