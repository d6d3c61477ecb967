"""The packed environment for the start cases: one archive that both servers can use.

NAIAD_BENCH_ENVIRONMENT names an existing archive. Without it, an archive is built and packed with `naiad env`.
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
    """An archive, and the version of the Python in it, as "3.11"."""

    archive: Path
    python: str


def packed_environment(folder: Path) -> Packed | None:
    """The archive to measure with, built first if necessary; None if the build fails, with the reason printed."""
    given = os.environ.get("NAIAD_BENCH_ENVIRONMENT")
    archive = Path(given).resolve() if given else folder / f"environment-{_recipe_digest()}.tar.gz"
    if not archive.exists():
        if given:
            raise SystemExit(f"cannot use NAIAD_BENCH_ENVIRONMENT={given}: the file does not exist")
        if not _build(archive):
            return None
    return Packed(archive, _python_of(archive))


def _recipe_digest() -> str:
    # The digest is part of the archive's name, so that an archive of an earlier recipe is not reused.
    files = sorted(RECIPE.iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def _build(archive: Path) -> bool:
    print("building and packing an environment (once) ...", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    # The reference's default stub is compiled for the Python with which it was installed, which is this one.
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    prefix = archive.with_name("environment")
    shutil.rmtree(prefix, ignore_errors=True)  # left by an earlier recipe
    # The reference cannot read zstd.
    pack = ("pack", prefix, "-o", archive, "--format", "tar.gz")
    return _naiad_env("build", RECIPE, "--python", minor, "-o", prefix) and _naiad_env(*pack)


def _naiad_env(*arguments: str | Path) -> bool:
    naiad = Path(sys.executable).with_name("naiad")
    done = subprocess.run([naiad, "env", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"cannot build an environment, so the starts with one are not measured:\n{done.stderr.strip()[-500:]}")
    return done.returncode == 0


def _python_of(archive: Path) -> str:
    with tarfile.open(archive) as members:
        for member in members:
            found = re.fullmatch(r"(?:\./)?lib/python(3\.\d+)/os\.py", member.name)
            if found:
                return found[1]
    raise SystemExit(f"cannot use {archive} as an environment: it contains no lib/python3.N/os.py")
