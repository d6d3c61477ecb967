"""Layers of images: reproducible tars, named by their digest.

Format: https://github.com/opencontainers/image-spec/blob/v1.1.0/layer.md.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from naiad.environments.archives.archive_writer import MTIME, HashedOutput, OutputMember
from naiad.environments.archives.parallel_gzip import STORED, gzip_writer
from naiad.models.artifacts.manifest import LAYER_GZIP

_CREATED = "1980-01-01T00:00:00Z"  # constant, so that an image's digest depends on its files only


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """One layer."""

    descriptor: dict[str, Any]
    diff_id: str
    made_by: str


def image_config(layers: Iterable[ImageLayer], architecture: str, config: dict[str, Any]) -> bytes:
    """The configuration of an image with these layers (config.md of the format)."""
    written = list(layers)
    return as_json(
        {
            "created": _CREATED,
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in written]},
            "history": [{"created": _CREATED, "created_by": layer.made_by} for layer in written],
        }
    )


def as_json(document: dict[str, Any]) -> bytes:
    """A document of an image, in the same bytes each time."""
    return json.dumps(document, indent=1).encode()


def write_layer(
    blobs: Path,
    members: Iterable[OutputMember],
    *,
    folders: dict[str, int] | None = None,
    at: str = "",
    made_by: str = "",
    is_packed: bool = False,
) -> ImageLayer:
    """Write a layer into a folder of blobs; the file is named by its digest.

    Args:
        folders: Modes of additional folders, by path.
        is_packed: Whether the files are compressed already. They are put into gzip's format all the same: programs that
            copy images compress other layers, and then write another manifest.
    """
    with tempfile.NamedTemporaryFile(dir=blobs, delete=False) as written:
        packed = HashedOutput(cast("IO[bytes]", written))
        with gzip_writer(packed, *((STORED,) if is_packed else ())) as stream:
            unpacked = HashedOutput(stream)
            _write_tar(unpacked, members, folders or {}, at)
        size = written.tell()
    path = Path(written.name)
    path.chmod(0o644)
    path.replace(blobs / packed.digest)
    found = {"mediaType": LAYER_GZIP, "digest": f"sha256:{packed.digest}", "size": size}
    return ImageLayer(found, f"sha256:{unpacked.digest}", made_by)


def _write_tar(output: HashedOutput, members: Iterable[OutputMember], folders: dict[str, int], at: str) -> None:
    """Write a tar with files of root; each folder precedes its files."""
    written: set[str] = set()

    def add_folders(path: str) -> None:
        for parent in reversed([str(folder) for folder in Path(path).parents if str(folder) != "."]):
            add_folder(parent, 0o755)

    def add_folder(path: str, mode: int) -> None:
        if path not in written:
            written.add(path)
            info = _info(path, mode)
            info.type = tarfile.DIRTYPE
            tar.addfile(info)

    with tarfile.open(fileobj=cast("IO[bytes]", output), mode="w|", bufsize=1 << 20) as tar:
        for path, mode in sorted(folders.items()):
            add_folders(path)
            add_folder(path, mode)
        for member in sorted(members, key=lambda member: member.name):
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
