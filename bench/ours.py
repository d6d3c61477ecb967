"""Installs naiad for the same build of Python that runs the reference's models.

The reference's stub loads the system's libpython. If another build of Python runs this benchmark, the comparison
would measure compilers: pyenv compiles without profile-guided optimisation, distributions with it, which saves a
quarter of the time of all Python code. NAIAD_BENCH_PYTHON names an interpreter to use instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bench.reference import Reference

ROOT = Path(__file__).parents[1]


def install(folder: Path, reference: Reference) -> Path:
    """The program `tritonserver` of this checkout, in an environment that is created below *folder* if necessary."""
    interpreter = _interpreter(reference)
    if interpreter == Path(sys.executable):
        return Path(sys.executable).with_name("tritonserver")
    program = folder / "ours" / "bin" / "tritonserver"
    ready, project = folder / "ours" / "ready", (ROOT / "pyproject.toml").read_text()
    if not ready.exists() or ready.read_text() != project:  # the dependencies may have changed
        print(f"installing naiad for {interpreter} ...", flush=True)
        subprocess.run([sys.executable, "-m", "virtualenv", "-q", "-p", interpreter, folder / "ours"], check=True)
        pip = [str(folder / "ours" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "install", "-e", str(ROOT)], check=True)
        ready.write_text(project)
    return program


def python_of(program: Path) -> str:
    """Version and origin of the Python that runs *program*, as text for the page."""
    ask = "import sys; print(sys.version.split()[0], sys.base_prefix)"
    done = subprocess.run([program.with_name("python"), "-c", ask], capture_output=True, text=True, check=True)
    number, _, prefix = done.stdout.strip().partition(" ")
    return f"{number}, {'the system build, as for Triton' if prefix == '/usr' else 'not the system build'}"


def _interpreter(reference: Reference) -> Path:
    given = os.environ.get("NAIAD_BENCH_PYTHON")
    if given:
        return Path(given)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = reference.root / "backends" / "python" / "triton_python_backend_stub"
    done = subprocess.run(["ldd", stub], capture_output=True, text=True, check=False)
    found = re.search(r"libpython\S+ => (\S+)", done.stdout)
    system = Path(f"/usr/bin/python{minor}")
    is_system = found is not None and Path(found[1]).resolve().is_relative_to("/usr/lib")
    return system if is_system and system.exists() else Path(sys.executable)
