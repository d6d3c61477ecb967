"""Models that report under which Python they run, and an environment for them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from environments import makers
from support.packages import install_packages
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
    """Write a model that reports under which Python it runs."""
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
    """The entry of each model in the repository index."""
    return {entry["name"]: entry for entry in server.post("/v2/repository/index", {}).json()}


def packed_environment(folder: Path) -> None:
    """Make an archive with conda-pack with a real numpy in it; see `made_environment`.

    Its Python is another one than the host's if numpy can be installed for it, else a copy of the host's with the
    host's numpy. The files that it was made from are removed.
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
    """The archive that `packed_environment` made in *folder*, and the version of its Python."""
    return folder / "environment.tar.gz", (folder / "minor").read_text()


def with_numpy(prefix: Path, minor: str, provide: Callable[[Path, str], bool]) -> Path | None:
    """A conda environment with numpy, as far as guests use it; None if *provide* has no numpy.

    Args:
        prefix: Its folder.
        minor: The version of its Python.
        provide: Puts numpy into the given site-packages for this version: `install_numpy` or `copy_numpy`.
    """
    also = ("asyncio", "multiprocessing", "unittest")
    library = makers.make_environment(prefix, minor, numpy=False, conda=True, also=also) / "lib" / f"python{minor}"
    if not provide(library / "site-packages", minor):
        return None
    keep_imported_modules(prefix / "bin" / "python", library / "site-packages", "numpy")
    return prefix


def install_numpy(site_packages: Path, minor: str) -> bool:
    # Not by the environment's own interpreter: uv refuses one of Python 3.8 without distutils.
    python = makers.base_interpreters()[minor] / "bin" / f"python{minor}"
    return not install_packages(python, site_packages, "numpy")


def keep_imported_modules(python: Path, site_packages: Path, *packages: str) -> None:
    """Remove the files of these packages that importing them does not load, and compile what is left.

    Nine tenths of numpy's files are never imported here, but would be compiled, packed, hashed and unpacked.
    """
    script = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(n) for n in sys.argv[2:]];"
        "print(*(getattr(m, '__file__', None) or '' for m in list(sys.modules.values())), sep='\\n')"
    )
    loaded = set(makers.run(python, "-c", script, str(site_packages), *packages).splitlines())
    for package in packages:
        for file in (site_packages / package).rglob("*"):
            if file.is_file() and str(file) not in loaded and "__pycache__" not in file.parts:
                file.unlink()


def copy_numpy(site_packages: Path, minor: str) -> bool:
    package = Path(np.__file__).parent
    for source in (package, package.with_name("numpy.libs")):
        if source.is_dir():
            shutil.copytree(source, site_packages / source.name, ignore=shutil.ignore_patterns("tests"))
    return True
