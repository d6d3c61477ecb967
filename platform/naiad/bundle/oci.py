"""A bundle as an image that every container runtime takes: an OCI image layout, the same bytes from the same input.

The layers are those parts that change at different times: libraries of the system, the server, environments, models.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from naiad.bundle.host import HOST_FOLDER
from naiad.bundle.make import Bundle
from naiad.bundle.program import interpreter_arguments
from naiad.bundle.system import SYSTEM_FOLDERS, system_files
from naiad.config.server.options import ServerOptions
from naiad.environments.archives.archive_writer import MTIME, Packed
from naiad.environments.archives.parallel_gzip import gzip_writer
from naiad.errors import BundleError

__all__ = ["IMAGE_USER", "check_base", "write_image"]

IMAGE_USER = "65532:0"
"""No root. Group 0 is that of any uid that a runtime puts in its place, so what the group may write, they may."""

_AT = "naiad"
_STORE = "var/lib/naiad"
_CREATED = "1980-01-01T00:00:00Z"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_STOP = "SIGTERM"


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer: what points to it, and the digest of its tar."""

    descriptor: dict[str, Any]
    diff_id: str
    made_by: str


def write_image(bundle: Bundle, options: ServerOptions, layout: Path, *, base: Path | None = None) -> str:
    """Write an image layout; the digest of its manifest.

    Args:
        bundle: What is in the image, below `/naiad`.
        options: The server's, for the ports.
        layout: The folder; what is there of an earlier image is replaced once this one is whole.
        base: Another layout whose image to build on; libraries of this machine unless given.

    Raises:
        BundleError: If it cannot be written, or the base cannot be used.
    """
    try:
        layout.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=layout.parent, prefix=f".{layout.name}.") as folder:
            unfinished = Path(folder, layout.name)
            digest = _Writer(unfinished, _architecture(bundle.manifest.platform)).write(bundle, options, base)
            if layout.exists():
                shutil.rmtree(layout)
            unfinished.replace(layout)
        return digest
    except OSError as error:
        raise BundleError(f"cannot write the image {layout}: {error}") from error


def check_base(base: Path, platform: str) -> None:
    """See that an image for *platform* can be built on that of another layout, before what takes long.

    Raises:
        BundleError: If it cannot.
    """
    _read_base(base, _architecture(platform))


class _Writer:
    def __init__(self, layout: Path, architecture: str) -> None:
        self._blobs = layout / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        self._layout = layout
        self._architecture = architecture

    def write(self, bundle: Bundle, options: ServerOptions, base: Path | None) -> str:
        config, layers = ({}, [self._system(bundle)]) if base is None else self._based(base)
        layers += [
            self._layer("the server and its interpreter", bundle.host),
            self._layer("environments", bundle.environments),
            self._layer("models", bundle.models, folders={_STORE: 0o775}),
        ]
        image = self._image(config, layers, bundle, options)
        described = self._add_json(image, _CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": described,
            "layers": [layer.descriptor for layer in layers],
        }
        pointer = self._add_json(manifest, _MANIFEST)
        pointer["platform"] = {"architecture": self._architecture, "os": "linux"}
        pointer["annotations"] = {"org.opencontainers.image.ref.name": bundle.manifest.name}
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [pointer]}
        (self._layout / "index.json").write_bytes(_json(index))
        (self._layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
        return str(pointer["digest"])

    def _image(
        self, base: dict[str, Any], layers: Sequence[_Layer], bundle: Bundle, options: ServerOptions
    ) -> dict[str, Any]:
        ports = [options.http.port] * options.http.is_enabled + [options.grpc.port] * options.grpc.is_enabled
        ports += [options.metrics.port] * options.metrics.is_enabled
        environ = [one for one in base.get("Env", ()) if not one.startswith(("NAIAD_STORE=", "HOME="))]
        if not any(one.startswith("PATH=") for one in environ):
            environ.append("PATH=/usr/local/bin:/usr/bin:/bin")
        history = [{"created": _CREATED, "created_by": layer.made_by} for layer in layers]
        return {
            "created": _CREATED,
            "architecture": self._architecture,
            "os": "linux",
            "config": {
                "User": IMAGE_USER,
                "ExposedPorts": {f"{port}/tcp": {} for port in ports},
                "Env": [*environ, f"NAIAD_STORE=/{_STORE}", "HOME=/tmp"],
                "Entrypoint": [f"/{_AT}/{HOST_FOLDER}/bin/python3", *interpreter_arguments(), f"/{_AT}"],
                "Volumes": {f"/{_STORE}": {}},
                "WorkingDir": f"/{_AT}",
                "StopSignal": _STOP,
                "Labels": {
                    "org.opencontainers.image.title": bundle.manifest.name,
                    "org.opencontainers.image.version": bundle.manifest.naiad,
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": history,
        }

    def _system(self, bundle: Bundle) -> _Layer:
        binaries = [one.source for one in bundle.host if one.source is not None]
        return self._layer("libraries of the system", system_files(binaries), folders=SYSTEM_FOLDERS, at="")

    def _based(self, base: Path) -> tuple[dict[str, Any], list[_Layer]]:
        """The configuration and the layers of another layout's image, whose blobs are copied."""
        config, layers = _read_base(base, self._architecture)
        for layer in layers:
            source = _blob(base, layer.descriptor["digest"])
            shutil.copyfile(source, self._blobs / source.name)
        return config, layers

    def _layer(
        self, made_by: str, members: Iterable[Packed], *, folders: dict[str, int] | None = None, at: str = f"{_AT}/"
    ) -> _Layer:
        with tempfile.TemporaryFile(dir=self._layout) as unpacked:
            _write_tar(unpacked, members, folders or {}, at)
            diff_id = _digest(unpacked)
            with tempfile.NamedTemporaryFile(dir=self._blobs, delete=False) as packed:
                unpacked.seek(0)
                with gzip_writer(cast("IO[bytes]", packed)) as stream:
                    shutil.copyfileobj(unpacked, stream, 1 << 20)
                size = packed.tell()
        path = Path(packed.name)
        with path.open("rb") as file:
            digest = _digest(file)
        path.chmod(0o644)
        path.replace(self._blobs / digest.removeprefix("sha256:"))
        return _Layer({"mediaType": _LAYER, "digest": digest, "size": size}, diff_id, f"naiad bundle: {made_by}")

    def _add_json(self, document: dict[str, Any], media_type: str) -> dict[str, Any]:
        data = _json(document)
        digest = hashlib.sha256(data).hexdigest()
        (self._blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _read_base(base: Path, architecture: str) -> tuple[dict[str, Any], list[_Layer]]:
    """The configuration and the layers of a layout's image."""
    try:
        index = json.loads((base / "index.json").read_bytes())
        manifest = _chosen(base, index, architecture)
        image = json.loads(_blob(base, manifest["config"]["digest"]).read_bytes())
        layers = [
            _Layer(descriptor, diff_id, "base image")
            for descriptor, diff_id in zip(manifest["layers"], image["rootfs"]["diff_ids"], strict=True)
        ]
        for layer in layers:
            _blob(base, layer.descriptor["digest"]).stat()
        return image.get("config") or {}, layers
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"--base={base} is no OCI image layout that can be built on: {error!r}") from error


def _chosen(base: Path, index: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The manifest for an architecture, also where an index of several is the only entry."""
    for entry in index["manifests"]:
        if entry.get("platform", {}).get("architecture", architecture) != architecture:
            continue
        document: dict[str, Any] = json.loads(_blob(base, entry["digest"]).read_bytes())
        return _chosen(base, document, architecture) if "manifests" in document else document
    raise BundleError(f"--base={base} has no image for {architecture}")


def _write_tar(output: IO[bytes], members: Iterable[Packed], folders: dict[str, int], at: str) -> None:
    """A tar of root's files, each folder before what is in it."""
    written: set[str] = set()

    def add_folders(path: str) -> None:
        for parent in reversed([str(one) for one in Path(path).parents if str(one) != "."]):
            add_folder(parent, 0o755)

    def add_folder(path: str, mode: int) -> None:
        if path not in written:
            written.add(path)
            info = _info(path, mode)
            info.type = tarfile.DIRTYPE
            tar.addfile(info)

    with tarfile.open(fileobj=output, mode="w") as tar:
        for path, mode in sorted(folders.items()):
            add_folders(path)
            add_folder(path, mode)
        for member in sorted(members, key=lambda one: one.name):
            name = f"{at}{member.name}"
            add_folders(name)
            info = _info(name, 0o755 if member.executable or member.link is not None else 0o644)
            if member.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, member.link
                tar.addfile(info)
                continue
            info.size = member.size
            with io.BytesIO(member.read()) if member.source is None else member.source.open("rb") as content:
                tar.addfile(info, content)


def _info(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime, info.mode = MTIME, mode
    return info


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode()


def _blob(layout: Path, digest: str) -> Path:
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def _architecture(platform: str) -> str:
    machine = platform.partition("-")[2]
    return _MACHINES.get(machine, machine)
