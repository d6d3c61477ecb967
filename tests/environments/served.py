"""Models that tell under which Python they run, and an environment in which they do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from environments import makers
from support.server import ServerProcess

MODEL = '''
import importlib.util
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says under which Python it runs."""

    def execute(self, requests):
        leak = "leaks" if importlib.util.find_spec("of_the_host") else "clean"
        told = [sys.prefix, "%d.%d" % sys.version_info[:2], np.__version__, leak]
        answer = pb_utils.Tensor("TOLD", np.array([text.encode() for text in told], dtype=object))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
'''
CONFIG = """
backend: "python"
input [ { name: "ASKED" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 4 ] } ]
"""
ASK = {"inputs": [{"name": "ASKED", "shape": [1], "datatype": "INT32", "data": [1]}]}
OWN_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def add_model(repository: Path, name: str, *, versions: tuple[int, ...] = (1,), **parameters: str) -> None:
    """A model that tells under which Python it runs."""
    config = CONFIG
    for key, value in parameters.items():
        config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    for version in versions:
        (repository / name / str(version)).mkdir(parents=True)
        (repository / name / str(version) / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(config)


def told(server: ServerProcess, model: str, version: int | None = None) -> list[str]:
    """Prefix, version and numpy of the Python a model runs under, and whether the server's PYTHONPATH reaches it."""
    path = f"/v2/models/{model}" if version is None else f"/v2/models/{model}/versions/{version}"
    reply = server.post(f"{path}/infer", ASK)
    assert reply.status == 200, reply.body
    found: list[str] = reply.json()["outputs"][0]["data"]
    return found


def index(server: ServerProcess) -> dict[str, Mapping[str, str]]:
    """What the repository index says of each model."""
    return {entry["name"]: entry for entry in server.post("/v2/repository/index", {}).json()}


def packed_environment(folder: Path) -> None:
    """Make an archive with conda-pack with a real numpy in it; see `made_environment`.

    Another Python than the host's where a numpy for it can be had; else the host's own numpy under a copy of its
    interpreter. What it was made from is gone when it is used.
    """
    minor = makers.other_minor()
    prefix = with_numpy(folder / "other", minor, install_numpy)
    if prefix is None:
        minor = OWN_MINOR
        prefix = with_numpy(folder / "own", minor, copy_numpy)
    assert prefix is not None
    makers.conda_pack(prefix, folder / "environment.tar.gz", "--compress-level=1")
    (folder / "minor").write_text(minor)
    shutil.rmtree(prefix)


def made_environment(folder: Path) -> tuple[Path, str]:
    """The archive that `packed_environment` has made there, and the version of its Python."""
    return folder / "environment.tar.gz", (folder / "minor").read_text()


def with_numpy(prefix: Path, minor: str, provide) -> Path | None:
    makers.make_environment(prefix, minor, numpy=False, conda=True)
    # What `makers` leaves out as no probe needs it, but numpy and the guest do.
    library, base = prefix / "lib" / f"python{minor}", makers.base_interpreters()[minor] / "lib" / f"python{minor}"
    for package in ("asyncio", "multiprocessing", "unittest"):
        shutil.copytree(base / package, library / package, ignore=shutil.ignore_patterns("test"))
    return prefix if provide(library / "site-packages", minor) else None


def install_numpy(site_packages: Path, minor: str) -> bool:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=0"]
    chosen = ["--target", str(site_packages), "--python-version", minor, "--only-binary=:all:", "numpy"]
    if subprocess.run([*pip, *chosen], capture_output=True, check=False).returncode:
        return False
    without_numpys_tests(site_packages)
    return True


def without_numpys_tests(site_packages: Path) -> None:
    """Remove half of numpy's files, which take half of the time to pack and unpack."""
    parts = [
        *site_packages.glob("numpy/**/tests"),
        site_packages / "numpy" / "f2py",
        site_packages / "numpy" / "distutils",
    ]
    for folder in parts:
        shutil.rmtree(folder, ignore_errors=True)


def copy_numpy(site_packages: Path, minor: str) -> bool:
    package = Path(np.__file__).parent
    for source in (package, package.with_name("numpy.libs")):
        if source.is_dir():
            shutil.copytree(source, site_packages / source.name, ignore=shutil.ignore_patterns("tests"))
    return True
