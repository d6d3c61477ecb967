"""The manifest of a repository in a registry: which layer contains which model, backend or environment.

The artifact is an OCI image manifest with image layers, so that container engines mount it: the repository is the
folder `/models`. Annotations of a layer say what is in it; layers without them belong to a base image and are not read.
`docs/reference/artifacts.md` is the format's reference.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from naiad.core.errors import Code, RegistryError
from naiad.core.foreign_json import read_json
from naiad.sources.registry.references import Reference

ARTIFACT_TYPE = "application/vnd.naiad.repository.v1"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
TOP_FOLDER = "models"  # folder of the image that is the model repository; KServe mounts it as `/mnt/models`
HIDDEN_FOLDER = ".naiad"  # folder of the repository with everything that is not a model; hidden folders are not models
SIGNATURES_FOLDER = f"{HIDDEN_FOLDER}/signatures"

_KIND, _NAME, _FILE, _USES = "naiad.kind", "naiad.name", "naiad.file", "naiad.uses"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class LayerKind(enum.Enum):
    """What a layer contains; the value is the annotation `naiad.kind`."""

    MODEL = "model"
    BACKEND = "backend"
    ENVIRONMENT = "environment"
    BILL_OF_MATERIALS = "sbom"
    SIGNATURE = "signature"


_FOLDERS = {
    LayerKind.MODEL: "",
    LayerKind.BACKEND: f"{HIDDEN_FOLDER}/backends/",
    LayerKind.ENVIRONMENT: f"{HIDDEN_FOLDER}/environments/",
    LayerKind.BILL_OF_MATERIALS: f"{HIDDEN_FOLDER}/sbom/",
    LayerKind.SIGNATURE: f"{SIGNATURES_FOLDER}/",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLayer:
    """One layer."""

    kind: LayerKind
    name: str
    file: str = ""  # path below the model's folder, if the layer has one large file only; else empty
    uses: tuple[str, ...] = ()  # parts that a model needs, as `environment/NAME` and `backend/NAME`
    digest: str = ""
    size: int = 0
    media_type: str = LAYER_GZIP

    def __str__(self) -> str:
        return f"{self.kind.value} '{self.name}'" + (f" ({self.file})" if self.file else "")

    @property
    def part(self) -> str:
        """Kind and name, which all layers of one model share."""
        return f"{self.kind.value}/{self.name}"

    @property
    def folder(self) -> str:
        """Path of the part in the repository: a folder, or a file of an environment, a signature or the SBOM."""
        return f"{_FOLDERS[self.kind]}{self.name}"

    @property
    def descriptor(self) -> dict[str, Any]:
        annotations = {_KIND: self.kind.value, _NAME: self.name}
        if self.file:
            annotations[_FILE] = self.file
        if self.uses:
            annotations[_USES] = json.dumps(list(self.uses))
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, "annotations": annotations}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A repository in a registry."""

    reference: Reference
    data: bytes
    layers: tuple[ArtifactLayer, ...]

    @property
    def digest(self) -> str:
        return self.reference.digest

    @property
    def models(self) -> list[str]:
        return sorted({layer.name for layer in self.layers if layer.kind is LayerKind.MODEL})

    @property
    def signatures(self) -> tuple[ArtifactLayer, ...]:
        return tuple(layer for layer in self.layers if layer.kind is LayerKind.SIGNATURE)

    def layers_of(self, model: str) -> list[ArtifactLayer]:
        own = [layer for layer in self.layers if layer.kind is LayerKind.MODEL and layer.name == model]
        used = {part for layer in own for part in layer.uses}
        if missing := ", ".join(sorted(used - {layer.part for layer in self.layers})):
            raise RegistryError(
                f"cannot use {self.reference} as a model repository: model '{model}' uses {missing}, which it does not "
                "have; push it again"
            )
        return [*own, *(layer for layer in self.layers if layer.part in used)]


def parse_artifact(reference: Reference, digest: str, data: bytes) -> Artifact:
    """The artifact that a manifest describes; raises `RegistryError` if it is not that of a repository."""
    where = f"{reference.pinned(digest)}"
    try:
        content = read_json(data)
        found = content.get("artifactType") or content.get("mediaType") or "unknown"
        if content.get("artifactType") != ARTIFACT_TYPE:
            _reject_rewritten(where, content["layers"])
            raise RegistryError(
                f"cannot use {where} as a model repository: its type is {found}, and `naiad push` writes "
                f"{ARTIFACT_TYPE}",
                code=Code.UNSUPPORTED,
            )
        described = [_layer(entry) for entry in content["layers"] if _KIND in (entry.get("annotations") or {})]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(
            f"cannot read the manifest of {where}: it is malformed ({error!r}); push it again"
        ) from error
    layers = tuple(layer for layer in described if layer is not None)
    _check_layers(where, layers)
    return Artifact(reference=reference.pinned(digest), data=data, layers=layers)


def _check_layers(where: str, layers: Iterable[ArtifactLayer]) -> None:
    """Reject layers of which two are one part of the repository."""
    found: set[tuple[str, str]] = set()
    for layer in layers:
        if layer.kind is not LayerKind.SIGNATURE and (layer.part, layer.file) in found:
            raise RegistryError(f"cannot use {where} as a model repository: it has {layer} twice; push it again")
        found.add((layer.part, layer.file))


def _reject_rewritten(where: str, layers: Iterable[Mapping[str, Any]]) -> None:
    """Reject a repository whose manifest another program has written again, as the annotations of layers show."""
    if any(_KIND in (entry.get("annotations") or {}) for entry in layers):
        raise RegistryError(
            f"cannot use {where} as a model repository: it was one, and the program that copied it has written another "
            "manifest, without the type, its digest and the signatures (skopeo does so when it compresses layers, "
            "which were not compressed before 0.3); copy the original with `skopeo copy --preserve-digests` or `oras "
            "cp`, or push the repository there",
            code=Code.UNSUPPORTED,
        )


def _layer(entry: Mapping[str, Any]) -> ArtifactLayer | None:
    annotations = entry["annotations"]
    if annotations[_KIND] not in {kind.value for kind in LayerKind}:
        return None
    layer = ArtifactLayer(
        kind=LayerKind(annotations[_KIND]),
        name=annotations[_NAME],
        file=annotations.get(_FILE, ""),
        uses=tuple(read_json(annotations.get(_USES, "[]"))),
        digest=entry["digest"],
        size=_size(entry["size"]),
        media_type=entry["mediaType"],
    )
    if not _DIGEST.fullmatch(layer.digest):
        raise ValueError(f"{layer.digest!r} is not a digest")
    # The name becomes a path in the store.
    if not _is_plain_name(layer.name) or (layer.kind is LayerKind.MODEL and layer.name.startswith(".")):
        raise ValueError(f"{layer.name!r} is not the name of a {layer.kind.value}")
    return layer


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not the size of a layer")
    return value


def _is_plain_name(name: str) -> bool:
    # Half a surrogate pair, which JSON can express, is in no path.
    return name not in {"", ".", ".."} and not any(each in "/\\\0" or "\ud800" <= each <= "\udfff" for each in name)


def changed_layers(signed: Iterable[Mapping[str, Any]], layers: Iterable[ArtifactLayer]) -> list[str]:
    """What differs between signed descriptors and the layers of a manifest, one sentence each."""
    before = {_identity(entry): entry for entry in signed}
    now = {_identity(layer.descriptor): layer for layer in layers if layer.kind is not LayerKind.SIGNATURE}
    differences = []
    for identity, layer in now.items():
        entry = before.get(identity)
        if entry is None:
            differences.append(f"{layer} was added after the signature")
        elif entry.get("digest") != layer.digest:
            differences.append(f"{layer} was changed: signed as {entry.get('digest')}, now {layer.digest}")
        elif dict(entry) != layer.descriptor:
            differences.append(f"the description of {layer} was changed")
    missing = [identity for identity in before if identity not in now]
    return differences + [f"{kind} '{name}'{f' ({file})' if file else ''} was removed" for kind, name, file in missing]


def needed_folders(descriptors: Iterable[Mapping[str, Any]], model: str) -> set[str]:
    """Folders of the repository that a model needs besides its own, from the descriptors of its layers."""
    found = set()
    for entry in descriptors:
        if _identity(entry)[:2] == (LayerKind.MODEL.value, model):
            for part in read_json(entry["annotations"].get(_USES, "[]")):
                kind, _, name = part.partition("/")
                found.add(f"{_FOLDERS[LayerKind(kind)]}{name}")
    return found


def _identity(descriptor: Mapping[str, Any]) -> tuple[str, str, str]:
    annotations = descriptor.get("annotations") or {}
    return str(annotations.get(_KIND, "")), str(annotations.get(_NAME, "")), str(annotations.get(_FILE, ""))
