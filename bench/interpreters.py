"""Interpreters of environments that are built once and kept between runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def with_packages(folder: Path, packages: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with these packages; made anew where they differ."""
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists() or done.read_text() != "\n".join(packages):
        print(f"installing {', '.join(packages)} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # pip needs ten minutes to find versions of MLServer's packages that fit each other; uv needs seconds.
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "pip", "install", "--quiet", f"--python={python}", *packages], check=True)
        done.write_text("\n".join(packages))
    return python


def declared_by(backend: str, store: Path) -> Path:
    """The interpreter of the environment that a backend of naiad declares, in a store that has no other."""
    with tempfile.TemporaryDirectory(prefix="naiad-bench-") as folder:
        (Path(folder) / "m" / "1").mkdir(parents=True)
        (Path(folder) / "m" / "config.pbtxt").write_text(f'backend: "{backend}"\n')
        command = [sys.executable, "-m", "naiad", "env", "prefetch", f"--model-repository={folder}"]
        subprocess.run([*command, f"--env-store={store}"], check=True)
    (python,) = store.glob("*/env/bin/python")
    return python
