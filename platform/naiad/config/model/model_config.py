"""The configuration as the rest of the server uses it: parsed once into frozen values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from naiad.config.model import model_config_pb2 as pb
from naiad.protocol.datatypes import Datatype

__all__ = [
    "All",
    "InstanceGroup",
    "InstanceKind",
    "Latest",
    "ModelConfig",
    "Specific",
    "TensorConfig",
    "VersionPolicy",
    "freeze",
    "freeze_version_policy",
    "instance_names",
]


class InstanceKind(enum.Enum):
    """Where an instance runs; the value is what a model finds in `args["model_instance_kind"]`."""

    AUTO = "AUTO"
    GPU = "GPU"
    CPU = "CPU"
    MODEL = "MODEL"


@dataclass(frozen=True, slots=True)
class Latest:
    """Serve the highest versions, so many of them."""

    num_versions: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """Serve every version."""


@dataclass(frozen=True, slots=True)
class Specific:
    """Serve these versions."""

    versions: tuple[int, ...]


VersionPolicy = Latest | All | Specific


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorConfig:
    """One input or output.

    Attributes:
        name: Its name.
        datatype: The type of its elements.
        dims: Its shape without the batch dimension; -1 varies.
        reshape: The shape the model sees, or None if it is `dims`.
        optional: A request may leave this input out.
        allow_ragged_batch: Requests that differ in this input's shape may share a batch.
        label_filename: File with the class labels of this output, relative to the model's directory, or empty.
    """

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    label_filename: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """Instances that are alike.

    Attributes:
        name: The prefix of its instances' names.
        kind: Where they run.
        count: How many there are.
        passive: They are loaded but get no requests.
        host_policy: Name of the host policy they run under, or empty for the default of their kind.
        gpus: Devices of a GPU group.
    """

    name: str
    kind: InstanceKind
    count: int
    passive: bool = False
    host_policy: str = ""
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The effective configuration of a model.

    Attributes:
        name: The model.
        platform: `ensemble`, a native backend's platform, or empty.
        backend: Name of the backend; empty for an ensemble.
        runtime: Library or `model.py` that runs the model; empty if that is left to the server.
        max_batch_size: Largest batch; 0 if the model knows no batch dimension.
        inputs: Inputs in order.
        outputs: Outputs in order.
        instance_groups: Groups of instances in order.
        version_policy: Which versions are served.
        default_model_filename: Name of the model's file in the version directory; may be empty.
        parameters: The model's own parameters.
        decoupled: Requests may be answered by any number of responses.
        message: The whole configuration; a copy, to be read only.
    """

    name: str
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    max_batch_size: int = 0
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    instance_groups: tuple[InstanceGroup, ...] = ()
    version_policy: VersionPolicy = field(default_factory=Latest)
    default_model_filename: str = ""
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    decoupled: bool = False
    message: pb.ModelConfig = field(default_factory=pb.ModelConfig, repr=False)


def freeze(message: pb.ModelConfig) -> ModelConfig:
    """Turn a normalised and validated message into frozen values; the message is copied."""
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    return ModelConfig(
        name=copy.name,
        platform=copy.platform,
        backend=copy.backend,
        runtime=copy.runtime,
        max_batch_size=copy.max_batch_size,
        inputs=tuple(_freeze_input(tensor) for tensor in copy.input),
        outputs=tuple(_freeze_output(tensor) for tensor in copy.output),
        instance_groups=tuple(_freeze_group(group) for group in copy.instance_group),
        version_policy=freeze_version_policy(copy.version_policy) if copy.HasField("version_policy") else Latest(),
        default_model_filename=copy.default_model_filename,
        parameters=MappingProxyType({key: value.string_value for key, value in sorted(copy.parameters.items())}),
        decoupled=copy.model_transaction_policy.decoupled,
        message=copy,
    )


def freeze_version_policy(policy: pb.ModelVersionPolicy) -> VersionPolicy:
    """The policy of a normalised configuration as a value.

    The reference reads a policy without a choice, `version_policy { }`, as all versions; where there is no policy,
    normalising put the latest one.
    """
    if policy.HasField("specific"):
        return Specific(tuple(policy.specific.versions))
    return Latest(policy.latest.num_versions) if policy.HasField("latest") else All()


def instance_names(config: ModelConfig) -> tuple[tuple[str, InstanceKind], ...]:
    """Names and kinds of a model's instances in order: `<group>_<i>`.

    A configuration without groups was given one named as the model when it was normalised, which makes `m_0`; an
    unnamed group was named `<model>_<index>`, which makes `m_0_0`. An ensemble has no instances.
    """
    groups = config.instance_groups
    if not groups and not config.message.HasField("ensemble_scheduling"):
        groups = (InstanceGroup(name=config.name, kind=InstanceKind.CPU, count=1),)
    return tuple((f"{group.name}_{index}", group.kind) for group in groups for index in range(group.count))


def instance_groups(config: ModelConfig) -> dict[str, pb.ModelInstanceGroup]:
    """The group of each instance that has one, by the instance's name."""
    groups = config.message.instance_group
    return {f"{group.name}_{index}": group for group in groups for index in range(group.count)}


def datatype_of(number: int) -> Datatype:
    """The datatype of a number in a message."""
    # proto3 lets any number through; one that no datatype has is refused when the tensors are checked.
    return Datatype(number) if number in pb.DataType.values() else Datatype.INVALID


def _freeze_input(tensor: pb.ModelInput) -> TensorConfig:
    return TensorConfig(
        name=tensor.name,
        datatype=datatype_of(tensor.data_type),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional=tensor.optional,
        allow_ragged_batch=tensor.allow_ragged_batch,
    )


def _freeze_output(tensor: pb.ModelOutput) -> TensorConfig:
    return TensorConfig(
        name=tensor.name,
        datatype=datatype_of(tensor.data_type),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        label_filename=tensor.label_filename,
    )


def _freeze_group(group: pb.ModelInstanceGroup) -> InstanceGroup:
    return InstanceGroup(
        name=group.name,
        kind=InstanceKind[pb.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")],
        count=group.count,
        passive=group.passive,
        host_policy=group.host_policy,
        gpus=tuple(group.gpus),
    )
