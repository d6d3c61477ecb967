"""A packed environment to start with: one archive that both servers can use.

NAIAD_BENCH_ENVIRONMENT names an archive that is already there; else one is built and packed with `naiad env`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

RECIPE = Path(__file__).with_name("recipe")


@dataclasses.dataclass(frozen=True)
class Packed:
    """An archive, and the Python in it as "3.11"."""

    archive: Path
    python: str


def packed_environment(folder: Path) -> Packed | None:
    """The archive to measure with, built first if need be; None (and a line why) where none can be had."""
    given = os.environ.get("NAIAD_BENCH_ENVIRONMENT")
    archive = Path(given).resolve() if given else folder / f"environment-{_recipe_digest()}.tar.gz"
    if not archive.exists():
        if given:
            raise SystemExit(f"NAIAD_BENCH_ENVIRONMENT={given} does not exist")
        if not _build(archive):
            return None
    return Packed(archive, _python_of(archive))


def _recipe_digest() -> str:
    # So that an archive of an earlier recipe is not taken for one of this.
    files = sorted(RECIPE.iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def _build(archive: Path) -> bool:
    print("building and packing an environment (once) ...", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    # The reference's default stub is compiled for the Python it was installed with, which is this one.
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    prefix = archive.with_name("environment")
    shutil.rmtree(prefix, ignore_errors=True)  # of an earlier recipe
    # The reference reads no zstd.
    pack = ("pack", prefix, "-o", archive, "--format", "tar.gz")
    return _naiad_env("build", RECIPE, "--python", minor, "-o", prefix) and _naiad_env(*pack)


def _naiad_env(*arguments: str | Path) -> bool:
    naiad = Path(sys.executable).with_name("naiad")
    done = subprocess.run([naiad, "env", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"no packed environment, so starts with one are not measured:\n{done.stderr.strip()[-500:]}")
    return done.returncode == 0


def _python_of(archive: Path) -> str:
    with tarfile.open(archive) as members:
        for member in members:
            found = re.fullmatch(r"(?:\./)?lib/python(3\.\d+)/os\.py", member.name)
            if found:
                return found[1]
    raise SystemExit(f"{archive} holds no lib/python3.N/os.py: not an environment")
