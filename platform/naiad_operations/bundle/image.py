"""A bundle as a container image: an OCI image layout, with identical bytes for identical input.

There is one layer for each part that changes at its own pace, so that a registry stores an unchanged part once: system
libraries, the server, environments, models. Without a base image, the first layer has the C library, the loader and the
other libraries of this machine that the bundle's binaries need, and no shell or package manager.

Format: https://github.com/opencontainers/image-spec (image-layout.md, manifest.md, config.md).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.core.errors import BundleError
from naiad.core.foreign_json import read_json
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.elf import read_dynamic_section
from naiad_operations.bundle.host import HOST_FOLDER, interpreter_arguments
from naiad_operations.bundle.layers import ImageLayer, as_json, image_config, write_layer
from naiad_operations.bundle.make import Bundle

# Not root. OpenShift replaces the user with an arbitrary uid in group 0, so folders are writable for group 0.
IMAGE_USER = "65532:0"

_AT = "naiad"
_STORE = "var/lib/naiad"
_PROGRAMS = "opt/tritonserver/bin"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(bundle: Bundle, options: ServerOptions, layout: Path, *, base: Path | None = None) -> str:
    """Write an image layout; returns the digest of its manifest.

    Args:
        layout: Folder to write; an existing layout is replaced when the new one is complete.
        base: Layout with the image to build on; None for this machine's libraries.
    """
    try:
        layout.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=layout.parent, prefix=f".{layout.name}.") as folder:
            unfinished = Path(folder, layout.name)
            digest = _LayoutWriter(unfinished, architecture_of(bundle.manifest.platform)).write(bundle, options, base)
            if layout.exists():
                shutil.rmtree(layout)
            unfinished.replace(layout)
        return digest
    except OSError as error:
        raise BundleError(f"cannot write the image {layout}: {error}") from error


def check_base(base: Path, platform: str) -> None:
    """Reject a base layout that has no usable image for *platform*, before the bundle is collected."""
    read_base(base, architecture_of(platform))


class _LayoutWriter:
    def __init__(self, layout: Path, architecture: str) -> None:
        self._blobs = layout / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        self._layout = layout
        self._architecture = architecture

    def write(self, bundle: Bundle, options: ServerOptions, base: Path | None) -> str:
        config, layers = ({}, [self._system(bundle)]) if base is None else self._based(base)
        layer = partial(write_layer, self._blobs, at=f"{_AT}/")
        program = [_tritonserver_program()]
        layers += [
            layer(bundle.host, made_by="naiad bundle: the server and its interpreter"),
            write_layer(self._blobs, program, made_by="naiad bundle: the program tritonserver"),
            layer(bundle.environments, made_by="naiad bundle: environments"),
            layer(bundle.models, folders={_STORE: 0o775}, made_by="naiad bundle: models"),
        ]
        image = image_config(layers, self._architecture, _runtime_config(config, bundle, options))
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._add_blob(image, _CONFIG),
            "layers": [layer.descriptor for layer in layers],
        }
        pointer = self._add_blob(as_json(manifest), _MANIFEST)
        pointer["platform"] = {"architecture": self._architecture, "os": "linux"}
        pointer["annotations"] = {"org.opencontainers.image.ref.name": bundle.manifest.name}
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [pointer]}
        (self._layout / "index.json").write_bytes(as_json(index))
        (self._layout / "oci-layout").write_bytes(as_json({"imageLayoutVersion": "1.0.0"}))
        return str(pointer["digest"])

    def _system(self, bundle: Bundle) -> ImageLayer:
        binaries = [member.source for member in bundle.host if member.source is not None]
        made_by = "naiad bundle: libraries of the system"
        return write_layer(self._blobs, _system_files(binaries), folders=_SYSTEM_FOLDERS, made_by=made_by)

    def _based(self, base: Path) -> tuple[dict[str, Any], list[ImageLayer]]:
        """The configuration and the layers of another layout's image; copies its blobs."""
        config, layers = read_base(base, self._architecture)
        for layer in layers:
            source = blob_path(base, layer.descriptor["digest"])
            shutil.copyfile(source, self._blobs / source.name)
        return config, layers

    def _add_blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self._blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _runtime_config(base: dict[str, Any], bundle: Bundle, options: ServerOptions) -> dict[str, Any]:
    """How a container starts the server, and what it inherits of the *base* image."""
    ports = [each.port for each in (options.http, options.grpc, options.metrics) if each.is_enabled]
    environ = [variable for variable in base.get("Env", ()) if not variable.startswith(("NAIAD_STORE=", "HOME="))]
    if not any(variable.startswith("PATH=") for variable in environ):
        environ.append("PATH=/usr/local/bin:/usr/bin:/bin")
    environ = [_with_programs(variable) if variable.startswith("PATH=") else variable for variable in environ]
    return {
        "User": IMAGE_USER,
        "ExposedPorts": {f"{port}/tcp": {} for port in ports},
        "Env": [*environ, f"NAIAD_STORE=/{_STORE}", "HOME=/tmp"],
        "Entrypoint": [f"/{_AT}/{HOST_FOLDER}/bin/python3", *interpreter_arguments(), f"/{_AT}"],
        "Volumes": {f"/{_STORE}": {}},
        "WorkingDir": f"/{_AT}",
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": bundle.manifest.name,
            "org.opencontainers.image.version": bundle.manifest.naiad,
        },
    }


def _tritonserver_program() -> OutputMember:
    """The program at the path of Triton's images, which Kubernetes files and scripts name.

    A Python script, because an image without a base has no shell.
    """
    lines = (
        f"#!/{_AT}/{HOST_FOLDER}/bin/python3 -IB",
        "import sys",
        "from naiad.cli.main import main_tritonserver",
        "sys.exit(main_tritonserver())",
    )
    return OutputMember(
        name=f"{_PROGRAMS}/tritonserver", data="".join(f"{line}\n" for line in lines).encode(), executable=True
    )


def _with_programs(path: str) -> str:
    return path if f"/{_PROGRAMS}" in path.removeprefix("PATH=").split(":") else f"{path}:/{_PROGRAMS}"


def read_base(base: Path, architecture: str) -> tuple[dict[str, Any], list[ImageLayer]]:
    """The configuration and the layers of a layout's image."""
    try:
        index = read_json((base / "index.json").read_bytes())
        manifest = _chosen(base, index, architecture)
        image = read_json(blob_path(base, manifest["config"]["digest"]).read_bytes())
        layers = [
            ImageLayer(descriptor, diff_id, "base image")
            for descriptor, diff_id in zip(manifest["layers"], image["rootfs"]["diff_ids"], strict=True)
        ]
        for layer in layers:
            blob_path(base, layer.descriptor["digest"]).stat()
        return image.get("config") or {}, layers
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"cannot build on --base={base}: it is not a usable OCI image layout: {error!r}") from error


def _chosen(base: Path, index: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The manifest for an architecture; descends into nested indexes, as `docker buildx` writes them."""
    for entry in index["manifests"]:
        if entry.get("platform", {}).get("architecture", architecture) != architecture:
            continue
        document: dict[str, Any] = read_json(blob_path(base, entry["digest"]).read_bytes())
        return _chosen(base, document, architecture) if "manifests" in document else document
    raise BundleError(f"cannot build on --base={base}: it has no image for {architecture}")


def blob_path(layout: Path, digest: str) -> Path:
    """The file of a blob in a layout."""
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def architecture_of(platform: str) -> str:
    """The name of a platform's processor in images: `amd64` for `linux-x86_64`."""
    machine = platform.partition("-")[2]
    return _MACHINES.get(machine, machine)


# -- the system layer of an image without a base ----------------------------------------------------------------------

_SYSTEM_FOLDERS = {"tmp": 0o1777, "var/lib/naiad": 0o775, "etc": 0o755}

# The loader's default folders (ld.so(8)); the multiarch folders of Debian come first.
_FOLDERS = ("/lib/{0}-linux-gnu", "/usr/lib/{0}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
# Not in any binary's list of needed libraries: glibc loads the NSS modules by name at run time, and the environments in
# archives, whose binaries are not read here, need the compiler's runtimes and zlib.
_ALWAYS = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2"),
    *("libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"),
)
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_TEXTS = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnaiad:x:65532:0:naiad:/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnaiad:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def _system_files(binaries: Iterable[Path]) -> list[OutputMember]:
    """The loader and libraries that binaries need, and files such as `/etc/passwd`; BundleError without a loader."""
    machine = os.uname().machine
    loader = Path(_LOADERS.get(machine, ""))
    if not loader.is_file():
        raise BundleError(
            f"cannot copy this machine's libraries into the image: {loader} is missing ({machine}); name an image to "
            "build on with --base"
        )
    files = {loader, *_libraries(binaries, machine)}
    found = [OutputMember(name=str(path)[1:], source=path.resolve(), executable=True) for path in files]
    return [*found, *(OutputMember(name=name, data=text.encode()) for name, text in _TEXTS.items())]


def _libraries(binaries: Iterable[Path], machine: str) -> Iterator[Path]:
    """The system's libraries that binaries need, and the libraries that those need."""
    folders = [Path(folder.format(machine)) for folder in _FOLDERS]
    pending = list(_ALWAYS)
    # A library that is among the binaries is in the image already.
    seen: set[str] = set()
    for binary in binaries:
        seen.add(binary.name)
        section = read_dynamic_section(binary)
        pending += section.needed if section is not None else ()
    while pending:
        name = pending.pop()
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if name in seen or path is None:
            continue  # not a library of the system: it is beside the binary that needs it
        seen.add(name)
        yield path
        section = read_dynamic_section(path)
        pending += section.needed if section is not None else ()
