"""Repositories to push, registries' contents as a container engine sees them, and the commands in this process."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from environments import makers
from support.registry import Registry

from naiad.cli.main import main
from naiad.environments.archives.archive_writer import OutputMember, write_archive
from naiad.environments.archives.manifest import MANIFEST_NAME, Manifest, Package, host_platform

CONFIG = """# the configuration of a test
backend: "%s"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        said = pb_utils.Tensor("Y", np.array([b"%s"], dtype=object))
        return [pb_utils.InferenceResponse([said]) for _ in requests]
"""
ASK = {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]}
PACKAGES = (
    Package(name="numpy", version="2.1.0", digest="a" * 64, source="python"),
    Package(name="openssl", version="3.4.0", digest="b" * 64, source="conda"),
    Package(name="scikit-learn", version="1.5.2", digest="", source="python"),
)


def add_model(repository: Path, name: str, says: str, *, backend: str = "python", environment: str = "") -> Path:
    """Write a model that says a word; returns its folder."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    config = CONFIG % backend
    if environment:
        config += f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    (folder / "config.pbtxt").write_text(config)
    if backend == "python":
        (folder / "1" / "model.py").write_text(CODE % says)
    else:
        (folder / "1" / "settings.txt").write_text(says)
    return folder


def write_environment(archive: Path, size: int = 1000) -> Path:
    """An archive with a manifest that can be inspected, pushed and pulled, but not run."""
    manifest = Manifest(
        name="tests", made_from="recipe", platform=host_platform(), glibc="2.17", python="3.12.1",
        abi="cpython-312-x86_64-linux-gnu", packages=PACKAGES, files=2, size=size, recipe={},
    )  # fmt: skip
    members = [
        OutputMember(name=MANIFEST_NAME, data=manifest.as_bytes()),
        OutputMember(name="lib/blob", data=hashlib.shake_256(b"noise").digest(size)),
    ]
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_archive(archive, "tar.zst", members, lambda _: None)
    return archive


def make_repository(folder: Path, *, size: int = 200_000) -> Path:
    """A repository of three models: one alone, one with a shared backend, one with an environment.

    The backend is in `folder/backends`, the environment in `folder/environments`.
    """
    models = folder / "models"
    add_model(models, "plain", "plain")
    write_environment(folder / "environments" / "science.tar.zst", size)
    environment = "$$TRITON_MODEL_DIRECTORY/../../environments/science.tar.zst"
    add_model(models, "packed", "packed", environment=environment)
    add_model(models, "shared", "shared", backend="loud")
    (folder / "backends" / "loud").mkdir(parents=True)
    (folder / "backends" / "loud" / "model.py").write_text(CODE % "loud")
    return models


class Commands:
    """Runs `naiad` in this process, with a store of its own."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._capsys = capsys

    def run(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        with _log_level_kept():
            code = main([*map(str, arguments), f"--env-store={self.store}"])
        written = self._capsys.readouterr()
        return code, written.out, written.err

    def succeed(self, *arguments: str | Path) -> str:
        code, out, err = self.run(*arguments)
        assert code == 0, out + err
        return out

    def fail(self, *arguments: str | Path) -> str:
        """The error of a command that fails: one line."""
        code, out, err = self.run(*arguments)
        assert code in {1, 2}, out + err
        assert len(err.splitlines()) == 1, err
        return err.strip()

    def push(self, target: str, models: Path, *flags: str) -> str:
        """Push a repository that `make_repository` wrote; returns the reference with its digest."""
        out = self.succeed("push", target, models, f"--backend-directory={models.parent / 'backends'}", *flags)
        return out.splitlines()[-1].removeprefix("pushed ")


@contextlib.contextmanager
def _log_level_kept() -> Iterator[None]:
    log = logging.getLogger("naiad")
    level = log.level
    try:
        yield
    finally:
        log.setLevel(level)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digests(folder: Path) -> dict[str, str]:
    return {path: hashlib.sha256(data).hexdigest() for path, data in contents(folder).items()}


def layers_of(registry: Registry, name: str, tag: str = "1") -> dict[str, dict[str, Any]]:
    """Descriptors by `kind/name`, with the file of layers that have one only."""
    found = {}
    for layer in registry.manifest(name, tag)["layers"]:
        marks = layer.get("annotations", {})
        file = f"/{marks['naiad.file']}" if "naiad.file" in marks else ""
        found[f"{marks.get('naiad.kind')}/{marks.get('naiad.name')}{file}"] = layer
    return found


def mount(registry: Registry, name: str, tag: str, root: Path) -> dict[str, Any]:
    """Unpack an image as a container engine does; returns its configuration."""
    manifest = registry.manifest(name, tag)
    blobs = registry.blobs[name]
    image = json.loads(blobs[manifest["config"]["digest"]])
    assert len(image["rootfs"]["diff_ids"]) == len(manifest["layers"])
    for layer, diff_id in zip(manifest["layers"], image["rootfs"]["diff_ids"], strict=True):
        data = blobs[layer["digest"]]
        assert layer["size"] == len(data)
        is_plain = layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:" if is_plain else "r:gz") as tar:
            tar.extractall(root, filter="tar")
        unpacked = data if is_plain else __import__("gzip").decompress(data)
        assert diff_id == f"sha256:{hashlib.sha256(unpacked).hexdigest()}"
    return image


def replace_layer(
    registry: Registry, name: str, tag: str, layer: str, members: Sequence[tuple[tarfile.TarInfo, bytes]], work: Path
) -> str:
    """Put another blob in the place of a layer, and move the tag to that manifest; returns its digest."""
    manifest = registry.manifest(name, tag)
    data = makers.write_tar(work / "layer.tar.gz", members).read_bytes()
    for entry in manifest["layers"]:
        marks = entry["annotations"]
        if f"{marks['naiad.kind']}/{marks['naiad.name']}" == layer:
            entry["digest"], entry["size"] = f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)
    return registry.put(name, tag, manifest, data)
