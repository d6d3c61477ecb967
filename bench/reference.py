"""Installs the real Triton and its load generator from PyPI wheels, without root, a container or a GPU.

NVIDIA's wheel `nvidia-pytriton` contains the server with its Python backend and the stubs of every Python version.
An older wheel of `tritonclient` contains the program `perf_analyzer`. Both are unpacked into one folder once.
NAIAD_BENCH_REFERENCE names an existing folder of this kind.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

SERVER_WHEEL, SERVER_VERSION = "nvidia-pytriton==0.7.0", "2.51.0"
LOAD_WHEEL = "tritonclient==2.41.1"  # the last one whose perf_analyzer needs only two extra libraries
# The server's stubs are built against numpy 1: with numpy 2 every response fails because of its shape.
PACKAGES = ("tritonclient[all]", "numpy<2")
# perf_analyzer loads these libraries by their plain names; the server's wheel has them under names with a digest.
LIBRARIES = {"libb64.so.0d": "libb64-*", "libcudart.so.12": "libcudart-*"}
MARKER = "READY"


@dataclasses.dataclass(frozen=True)
class Reference:
    """Where the parts of an installed reference are."""

    root: Path

    @property
    def site(self) -> Path:
        """The site-packages that hold the server, and numpy for models without an environment."""
        return next(self.root.glob("venv/lib/python3*/site-packages"))

    @property
    def server(self) -> Path:
        """The folder of the server: its program, backends and caches."""
        return self.site / "pytriton" / "tritonserver"

    @property
    def libraries(self) -> Path:
        """The shared libraries of the server's wheel."""
        return self.site / "nvidia_pytriton.libs"

    def server_command(self) -> list[str]:
        """The command of the server; append its usual options."""
        return [
            str(self.server / "bin" / "tritonserver"),
            f"--backend-directory={self.root / 'backends'}",
            f"--cache-directory={self.server / 'caches'}",
        ]

    def server_environ(self, *, packages: bool) -> dict[str, str]:
        """Environment variables of the server; with `packages`, its models can import the reference's numpy.

        Models with an environment must run without `packages`: PYTHONPATH would put this numpy before theirs.
        """
        python = {"PYTHONPATH": str(self.site)} if packages else {}
        path = f"{self.root / 'venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        return {"LD_LIBRARY_PATH": str(self.libraries), "PATH": path, **python}

    def load_command(self) -> list[str]:
        """The command of perf_analyzer; append its options."""
        return [str(self.root / "bin" / "perf_analyzer.bin")]

    def load_environ(self) -> dict[str, str]:
        """Environment variables of perf_analyzer."""
        return {"LD_LIBRARY_PATH": f"{self.root / 'lib'}{os.pathsep}{self.libraries}"}

    def stub(self, minor: str) -> Path:
        """The compiled stub for models that run under Python `minor`, as "3.12"."""
        return self.root / "stubs" / minor / "triton_python_backend_stub"


def install(folder: Path) -> Reference:
    """The reference in `folder`, installed there first if necessary, which takes a minute and 700 MB."""
    given = os.environ.get("NAIAD_BENCH_REFERENCE")
    root = Path(given) if given else folder
    if not (root / MARKER).exists():
        if given:
            raise SystemExit(
                f"cannot use NAIAD_BENCH_REFERENCE={given}: {root / MARKER} is missing; finish its installation"
            )
        print(f"installing the reference into {root} (once, about a minute) ...", flush=True)
        _install(root)
    return Reference(root.resolve())


def _install(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)  # left by an interrupted installation
    (root / "bin").mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    pip = [str(root / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", SERVER_WHEEL, *PACKAGES], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(root), LOAD_WHEEL], check=True)
    reference = Reference(root.resolve())
    _lay_out_backends(reference)
    _take_load_generator(reference)
    _write_start_script(reference)
    (root / MARKER).touch()


def _lay_out_backends(reference: Reference) -> None:
    backends = reference.root / "backends"
    shutil.copytree(reference.server / "backends", backends)
    shutil.copytree(reference.server / "python_backend_stubs", reference.root / "stubs")
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(reference.stub(minor), backends / "python")


def _take_load_generator(reference: Reference) -> None:
    libraries = reference.root / "lib"
    libraries.mkdir()
    for name, pattern in LIBRARIES.items():
        (libraries / name).symlink_to(next(reference.libraries.glob(pattern)))
    program = reference.root / "bin" / "perf_analyzer.bin"
    with zipfile.ZipFile(next(reference.root.glob("tritonclient-*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith("/data/bin/perf_analyzer"))
        program.write_bytes(wheel.read(member))
    program.chmod(0o755)


def _write_start_script(reference: Reference) -> None:
    # For users and for tests/conformance: starts the server with the variables and folders that it needs.
    environ = {**reference.server_environ(packages=True), "PATH": f"{reference.root / 'venv' / 'bin'}:$PATH"}
    lines = [f'export {name}="{value}"' for name, value in environ.items()]
    command = " ".join(f'"{word}"' for word in reference.server_command())
    script = reference.root / "bin" / "tritonserver"
    script.write_text("\n".join(["#!/bin/sh", *lines, f'exec {command} "$@"', ""]))
    script.chmod(0o755)
