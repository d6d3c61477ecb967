"""A model repository as an image: its models, backends and environments in separate layers.

`naiad push` sends it. There is one layer for each model, backend and environment, and one for each large file of a
model, so that a registry stores an unchanged part once. Everything is below the folder `models`, which KServe mounts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from naiad import __version__
from naiad.config.server.options import ServerOptions
from naiad.core.errors import BundleError
from naiad.core.signatures import SIGNATURE_SUFFIX
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.archives.manifest import host_platform
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.inspection import inspect_environment
from naiad.models.artifacts.manifest import (
    ARTIFACT_TYPE,
    CONFIG_TYPE,
    HIDDEN_FOLDER,
    MANIFEST_TYPE,
    TOP_FOLDER,
    ArtifactLayer,
    LayerKind,
)
from naiad.models.artifacts.statements import make_statement, sign_statement
from naiad.sources.registry.client import sha256_of
from naiad.sources.registry.references import Reference
from naiad_operations.bundle.bill_of_materials import EnvironmentFacts, bill_of_materials
from naiad_operations.bundle.environments import BundledEnvironments
from naiad_operations.bundle.image import architecture_of, blob_path, read_base
from naiad_operations.bundle.layers import ImageLayer, as_json, image_config, write_layer
from naiad_operations.bundle.manifest import digests_of
from naiad_operations.bundle.models import CollectedLayout, CollectedModels, collect_models
from naiad_operations.bundle.records import PushRecords, StaleRecordError, state_of_members

# Files of a model with at least so many bytes have their own layer: a change of code does not send weights again.
_LARGE_FILE = 16 << 20
_LAYER_LIMIT = 120  # container engines mount at most 127 layers
_BACKENDS = f"{TOP_FOLDER}/{HIDDEN_FOLDER}/backends"
_ENVIRONMENTS = f"{TOP_FOLDER}/{HIDDEN_FOLDER}/environments"
_SBOM_NAME = "sbom.cdx.json"
# Kinds of layers by the folder, in their order: environments precede models, because they change less often.
_KINDS = {
    "environments": LayerKind.ENVIRONMENT,
    "backends": LayerKind.BACKEND,
    "models": LayerKind.MODEL,
    "sbom": LayerKind.BILL_OF_MATERIALS,
}


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob of an image."""

    name: str
    size: int
    # The file with its content, which the call writes if that was left out. Raises StaleRecordError if the content is
    # not what an earlier push had.
    file: Callable[[], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryImage:
    """A repository, ready to be sent; *blobs*, by digest, lacks the configuration."""

    manifest: bytes
    config: bytes
    layers: tuple[ArtifactLayer, ...]
    blobs: Mapping[str, Blob]
    notes: tuple[str, ...]

    @property
    def digest(self) -> str:
        return sha256_of(self.manifest)


def write_repository(
    options: ServerOptions,
    scratch: Path,
    reporter: ProgressReporter,
    *,
    reference: Reference,
    keys: Sequence[Path],
    base: Path | None,
    records: PushRecords,
) -> RepositoryImage:
    """Write the layers of the repository that the options name.

    Args:
        scratch: An empty folder for the layers; it must exist until they are sent.
        base: OCI image layout to put the layers on, for engines that start a shell in the image; None for none.
    """
    if len(options.models.repositories) != 1:
        raise BundleError("cannot push several repositories as one: push each under a name of its own")
    # Signatures of archives are for the server that pulls; here nothing is run.
    policy = replace(store_policy(options), trust=None)
    environments = BundledEnvironments(
        scratch / "environments",
        reporter,
        EnvironmentManager(options.environments.store, reporter=reporter, policy=policy),
        folder=_ENVIRONMENTS,
        has_own_folders=True,
        is_for_any_platform=True,
        records=records,
    )
    layout = CollectedLayout(models=TOP_FOLDER, backends=_BACKENDS, has_one_backends_folder=True)
    collected = collect_models(options, environments, None, layout)
    members = {**collected.members, **environments.members}
    sbom = _sbom(collected, environments, records, scratch, reporter)
    members[sbom.name] = sbom
    writer = _ImageWriter(scratch / "blobs", environments, records, str(options.models.repositories[0]))
    if base is not None:
        writer.add_base(base)
    for part, own in _parts(members).items():
        writer.add(replace(part, uses=_uses(collected, part)), own)
    if keys:
        digests = digests_of(members.values(), environments.facts)
        files = {path.partition("/")[2]: digest for path, digest in digests.items()}
        statement = make_statement(reference, files, writer.descriptors())
        for key in keys:
            key_id, data = sign_statement(statement, key)
            layer = ArtifactLayer(kind=LayerKind.SIGNATURE, name=f"{key_id}.json")
            writer.add(layer, [OutputMember(name=f"{TOP_FOLDER}/{layer.folder}", data=data)])
    return writer.image((*environments.notes, *_notes(writer.count)))


class _ImageWriter:
    def __init__(self, folder: Path, environments: BundledEnvironments, records: PushRecords, repository: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._environments = environments
        self._digests = {path: str(facts["sha256"]) for path, facts in environments.facts.items()}
        self._records = records
        self._repository = repository
        self._base: dict[str, Any] = {}
        self._base_layers: list[ImageLayer] = []
        self._layers: list[tuple[ArtifactLayer, ImageLayer]] = []
        self._blobs: dict[str, Blob] = {}

    @property
    def count(self) -> int:
        return len(self._base_layers) + len(self._layers)

    def add_base(self, base: Path) -> None:
        self._base, self._base_layers = read_base(base, architecture_of(host_platform()))
        for layer in self._base_layers:
            digest = layer.descriptor["digest"]
            self._blobs[digest] = Blob("base image", layer.descriptor["size"], partial(blob_path, base, digest))

    def add(self, layer: ArtifactLayer, members: Sequence[OutputMember]) -> None:
        name = f"layer {layer} of {self._repository}"
        state = state_of_members(members, self._digests)
        known = self._records.find(name, state)
        if known is not None:
            written = ImageLayer(known["descriptor"], known["diff_id"], made_by=_made_by(layer))
            file = partial(self._rewrite, layer, members, written)
        else:
            written = self._write(layer, members)
            file = partial(self._path, written)
            if state == state_of_members(members, self._digests):
                self._records.remember(name, state, {"descriptor": written.descriptor, "diff_id": written.diff_id})
        found = written.descriptor
        described = replace(layer, digest=found["digest"], size=found["size"], media_type=found["mediaType"])
        self._layers.append((described, written))
        self._blobs.setdefault(described.digest, Blob(str(described), described.size, file))

    def _write(self, layer: ArtifactLayer, members: Sequence[OutputMember]) -> ImageLayer:
        for member in members:
            self._environments.provide(member.source)
        is_packed = layer.kind is LayerKind.ENVIRONMENT
        return write_layer(self._folder, members, made_by=_made_by(layer), is_packed=is_packed)

    def _path(self, written: ImageLayer) -> Path:
        return self._folder / str(written.descriptor["digest"]).removeprefix("sha256:")

    def _rewrite(self, layer: ArtifactLayer, members: Sequence[OutputMember], known: ImageLayer) -> Path:
        if self._write(layer, members).descriptor["digest"] != known.descriptor["digest"]:
            raise StaleRecordError(f"cannot use what is known of the layer {layer}: it has other content now")
        return self._path(known)

    def descriptors(self) -> list[dict[str, Any]]:
        return [layer.descriptor for layer, _ in self._layers]

    def image(self, notes: tuple[str, ...]) -> RepositoryImage:
        written = [*self._base_layers, *(layer for _, layer in self._layers)]
        config = image_config(written, architecture_of(host_platform()), self._base)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": sha256_of(config), "size": len(config)},
            "layers": [*(layer.descriptor for layer in self._base_layers), *self.descriptors()],
            "annotations": {"naiad.version": __version__},
        }
        return RepositoryImage(
            manifest=as_json(manifest),
            config=config,
            layers=tuple(layer for layer, _ in self._layers),
            blobs=self._blobs,
            notes=notes,
        )


def _made_by(layer: ArtifactLayer) -> str:
    return f"naiad push: {layer}"


def _parts(members: Mapping[str, OutputMember]) -> dict[ArtifactLayer, list[OutputMember]]:
    """The members of each layer, in the order of the kinds."""
    parts: dict[ArtifactLayer, list[OutputMember]] = {}
    for name in sorted(members):
        # The archive of an environment may not be written yet, and has a layer of its own whatever its size.
        size = 0 if name.startswith(_ENVIRONMENTS) else members[name].size
        parts.setdefault(_layer_of(name, size), []).append(members[name])
    order = list(_KINDS.values())
    keys = sorted(parts, key=lambda part: (order.index(part.kind), part.name, part.file))
    return {part: parts[part] for part in keys}


def _layer_of(path: str, size: int) -> ArtifactLayer:
    first, *rest = path.split("/")[1:]
    if first != HIDDEN_FOLDER:
        file = "/".join(rest) if size >= _LARGE_FILE else ""
        return ArtifactLayer(kind=LayerKind.MODEL, name=first, file=file)
    return ArtifactLayer(kind=_KINDS[rest[0]], name=rest[1])


def _uses(collected: CollectedModels, part: ArtifactLayer) -> tuple[str, ...]:
    if part.kind is not LayerKind.MODEL:
        return ()
    return tuple(sorted({_layer_of(path, 0).part for path in collected.uses[f"{TOP_FOLDER}/{part.name}"]}))


def _sbom(
    collected: CollectedModels,
    environments: BundledEnvironments,
    records: PushRecords,
    scratch: Path,
    reporter: ProgressReporter,
) -> OutputMember:
    facts: dict[str, EnvironmentFacts] = {}
    for path, member in environments.members.items():
        if path.endswith(SIGNATURE_SUFFIX):
            continue
        digest = str(environments.facts[path]["sha256"])
        known = records.find(f"facts of {path}", digest)
        if known is None:
            environments.provide(member.source)
            found = inspect_environment(str(member.source), scratch / "store", reporter)
            known = {each.name: getattr(found, each.name) for each in fields(EnvironmentFacts)}
            known["packages"] = [asdict(package) for package in found.packages]
            records.remember(f"facts of {path}", digest, known)
        facts[_layer_of(path, 0).name] = EnvironmentFacts.from_json(known)
    uses = {
        folder.rpartition("/")[2]: [_layer_of(path, 0).name for path in paths if path.startswith(_ENVIRONMENTS)]
        for folder, paths in collected.uses.items()
    }
    data = bill_of_materials(collected.models, facts, uses)
    return OutputMember(name=f"{TOP_FOLDER}/{HIDDEN_FOLDER}/sbom/{_SBOM_NAME}", data=data)


def _notes(count: int) -> Iterator[str]:
    if count > _LAYER_LIMIT:
        yield f"{count} layers: naiad pulls any number, but container engines, such as KServe's, mount at most 127"
