"""Every form of environment, under every Python of this machine, serves a model that needs a compiled package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard
from environments import makers
from environments.packages import can_hide, run_alone
from environments.served import keep_imported_modules
from isal import igzip
from support.model_files import write_files
from support.packages import install_packages
from support.server import ServerProcess

from naiad_building.pack import pack
from naiad_building.uv_program import find_uv

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(600)]

MODEL = '''
import sys

import numpy as np
import orjson
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Computes with numpy, and says where and under what it runs with orjson, which is compiled."""

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            told = {"sum": int(np.linalg.norm(array)), "prefix": sys.prefix, "python": "%d.%d" % sys.version_info[:2]}
            answer = np.array([orjson.dumps(told)], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", answer)]))
        return responses
'''
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
ASK = {"inputs": [{"name": "X", "shape": [2], "datatype": "FP32", "data": [3, 4]}]}
ALONE = "import sys, numpy, orjson; print(sys.prefix, orjson.dumps(int(numpy.arange(4).sum())).decode())"
PACKED = ("conda-pack-gz", "conda-pack-zst", "packed-venv")
_ALSO = ("asyncio", "multiprocessing", "unittest", "zoneinfo", "email", "distutils")
KINDS = (*PACKED, "plain-venv", "conda-directory", "uv-venv")
MINORS = tuple(makers.base_interpreters())


@dataclass
class Matrix:
    """The environments that were made, and what their models answered, by kind and version."""

    store: Path
    archives: dict[tuple[str, str], Path] = field(default_factory=dict)
    failures: dict[tuple[str, str], BaseException] = field(default_factory=dict)
    told: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)

    def answer(self, kind: str, minor: str) -> dict[str, object]:
        """The model's answer; raises what failed instead."""
        if (kind, minor) in self.failures:
            raise self.failures[kind, minor]
        return self.told[kind, minor]


@pytest.fixture(scope="module")
def matrix(work: Path) -> Iterator[Matrix]:
    """All environments, made once and served by one server, whose store is in a folder with a space in its name."""
    made = Matrix(work / "a store")
    # Two at a time, because each of them often waits for the disk.
    with ThreadPoolExecutor(2) as pool:
        made_each = pool.map(lambda minor: _make(work / minor, minor), MINORS)
        for minor, places in zip(MINORS, made_each, strict=True):
            for kind, place in places.items():
                if isinstance(place, BaseException):
                    made.failures[kind, minor] = place
                else:
                    made.archives[kind, minor] = place
    for (kind, minor), place in made.archives.items():
        write_files(work / "models", _name(kind, minor), CONFIG % place, MODEL)
    options = [f"--env-store={made.store}", "--exit-on-error=false"]
    with ServerProcess(work / "models", *options, work=work, wait="loaded", timeout=300) as server:
        for key in made.archives:
            reply = server.post(f"/v2/models/{_name(*key)}/infer", ASK)
            if reply.status == 200:
                made.told[key] = json.loads(reply.json()["outputs"][0]["data"][0])
            else:
                made.failures[key] = AssertionError(f"{reply.body.decode()}: {server.log[-3000:]}")
    yield made
    shutil.rmtree(work, ignore_errors=True)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_environment_serves_under_every_python(matrix: Matrix, kind: str, minor: str) -> None:
    told = matrix.answer(kind, minor)

    assert (told["sum"], told["python"]) == (5, minor)
    assert Path(str(told["prefix"])).is_relative_to(matrix.store) == (kind in PACKED)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("kind", PACKED)
def test_packed_environments_run_while_what_built_them_is_hidden(matrix: Matrix, kind: str, minor: str) -> None:
    """The path of the environment has a space in it."""
    prefix = str(matrix.answer(kind, minor)["prefix"])
    hidden = (makers.base_interpreters()[minor], matrix.store.with_name(minor))

    python = f"{prefix}/bin/python"
    assert run_alone([python, "-I", "-B", "-c", ALONE], *hidden) == f"{prefix} 6\n"


@pytest.mark.parametrize("kind", PACKED)
def test_a_server_uses_a_store_that_it_cannot_write_to(matrix: Matrix, kind: str, tmp_path: Path) -> None:
    """An image or a volume may contain such a store. It is mounted read-only, because root may write to any folder."""
    if not can_hide():
        pytest.skip("mounting takes rights that this user does not have")
    minor = MINORS[-1]
    write_files(tmp_path / "models", "packed", CONFIG % matrix.archives[kind, minor], MODEL)
    read_only = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    command = [
        "unshare",
        "--mount",
        "/bin/sh",
        "-c",
        read_only,
        str(matrix.store),
        Path(sys.executable).with_name("tritonserver"),
    ]

    with ServerProcess(
        tmp_path / "models", f"--env-store={matrix.store}", work=tmp_path, command=command, timeout=60
    ) as server:
        reply = server.post("/v2/models/packed/infer", ASK)

    assert reply.status == 200, reply.body
    assert json.loads(reply.json()["outputs"][0]["data"][0]) == matrix.answer(kind, minor)


def _name(kind: str, minor: str) -> str:
    return f"{kind}-{minor}"


def _make(folder: Path, minor: str) -> dict[str, Path | BaseException]:
    """An environment of each kind, or why it could not be made."""
    # With the parts of the standard library that numpy and orjson need: packing the whole of it is tested elsewhere.
    base = makers.make_environment(folder / "base", minor, numpy=False, also=_ALSO) / "bin" / f"python{minor}"
    # Installed and compiled once for all kinds: both take seconds.
    site = folder / "packages"
    failure = install_packages(base, site, "numpy", "orjson")
    assert not failure, failure
    keep_imported_modules(base, site, "numpy", "orjson")
    found: dict[str, Path | BaseException] = {}
    for kind, make in _MAKERS.items():
        try:
            made = make(folder, base, site)
            found.update(made if isinstance(made, dict) else {kind: made})
        except BaseException as error:
            found[kind] = error
    return found


def _conda(folder: Path, base: Path, site: Path) -> dict[str, Path]:
    """A conda environment, and what the real conda-pack makes of it."""
    minor = base.name.removeprefix("python")
    prefix = makers.make_environment(folder / "conda", minor, numpy=False, conda=True, also=_ALSO)
    shutil.copytree(site, prefix / "lib" / base.name / "site-packages", dirs_exist_ok=True)
    # conda-pack compresses the tar that it writes; here it writes that once, for both forms.
    plain = makers.conda_pack(prefix, folder / "conda.tar").read_bytes()
    (folder / "conda.tar").unlink()
    packed = {"gz": igzip.compress(plain, 1), "zst": zstandard.ZstdCompressor(1).compress(plain)}
    archives = {kind: folder / f"conda.tar.{kind[-3:].strip('-')}" for kind in PACKED[:2]}
    for archive in archives.values():
        archive.write_bytes(packed[archive.suffix[1:]])
    return {**archives, "conda-directory": prefix}


def _plain_venv(folder: Path, base: Path, site: Path) -> Path:
    subprocess.run([base, "-I", "-m", "venv", "--without-pip", folder / "venv"], check=True)
    return _filled(folder / "venv", site)


def _packed_venv(folder: Path, base: Path, site: Path) -> Path:
    """An archive of a venv that is removed before the archive is used."""
    subprocess.run([base, "-I", "-m", "venv", "--without-pip", folder / "to be packed"], check=True)
    # Not compressed, because compressing takes longest, and other tests are about formats.
    packed = pack(_filled(folder / "to be packed", site), folder / "venv.tar")
    shutil.rmtree(folder / "to be packed")
    return packed.archive


def _uv_venv(folder: Path, base: Path, site: Path) -> Path:
    command = [
        find_uv(),
        "venv",
        "--quiet",
        "--offline",
        "--no-config",
        "--relocatable",
        "--python",
        base,
        folder / "uv-venv",
    ]
    subprocess.run(command, check=True)
    return _filled(folder / "uv-venv", site)


_MAKERS = {"conda-pack-gz": _conda, "plain-venv": _plain_venv, "packed-venv": _packed_venv, "uv-venv": _uv_venv}


def _filled(environment: Path, site: Path) -> Path:
    (site_packages,) = environment.glob("lib/python*/site-packages")
    shutil.copytree(site, site_packages, dirs_exist_ok=True)
    return environment
