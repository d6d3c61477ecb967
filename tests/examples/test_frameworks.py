"""`examples/frameworks/show.py` as a user runs it: several Pythons and frameworks in one server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOW = ROOT / "examples" / "frameworks" / "show.py"
SOFTMAX = "0.0321 0.0871 0.2369 0.6439 with "
CANNOT_INSTALL = ("No matching distribution", "not found", "onnection", "cannot install", "no Python", "No solution")
"""Parts of what installers print without a package index, or without that interpreter."""


def show(work: Path, *arguments: str) -> tuple[int, dict[str, list[str]], str]:
    """Run the script; its exit code, what it prints about each model, and all that it printed and logged."""
    command = [sys.executable, str(SHOW), "--work", str(work), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False)
    told: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        model, colon, rest = line.partition(": ")
        if colon:
            told.setdefault(model, []).append(rest)
    logs = "".join(path.read_text(errors="replace") for path in sorted(work.glob("*.log")))
    return done.returncode, told, f"{done.stdout}\n{done.stderr}\n{logs}"


@pytest.mark.endurance
@pytest.mark.timeout(560)
def test_kinds_of_instances_jax_and_a_packed_python_serve_beside_each_other(tmp_path):
    """PyTorch is left out here: its packages are several times as large as all others together."""
    code, told, everything = show(tmp_path, "--without", "torch")
    if code and any(hint in everything for hint in CANNOT_INSTALL):
        pytest.skip("the environment of Python 3.9 cannot be built here")
    assert code == 0, everything
    instances = (("cpu_0", "CPU"), ("cpu_1", "CPU"), ("free_0", "MODEL"))
    assert told["where"] == [f"instance {name} of kind {kind}" for name, kind in instances]
    assert told["in_numpy39"][0].startswith(f"{SOFTMAX}Python 3.9.")
    assert told["in_torch"] == ["left out, as asked"]
    (jax,) = told["in_jax"]
    if jax.startswith("left out, its packages could not be installed"):
        assert any(hint in everything for hint in CANNOT_INSTALL), everything
    else:
        assert jax.startswith(f"{SOFTMAX}Python 3.12.")
        assert ", JAX " in jax
