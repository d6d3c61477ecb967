"""The effective configuration of a model as frozen values, for the rest of the server."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.parameters import NO_PARAMETERS_GIVEN, ModelParameters, parse_parameters
from naiad.config.model.render import to_json
from naiad.protocol.datatypes import Datatype


class InstanceKind(enum.Enum):
    """Where an instance runs; the value is that of `args["model_instance_kind"]`."""

    AUTO = "AUTO"
    GPU = "GPU"
    CPU = "CPU"
    MODEL = "MODEL"


@dataclass(frozen=True, slots=True)
class Latest:
    """Serve the *num_versions* highest versions."""

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
    """One input or output."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]  # its shape without the batch dimension; -1 is a variable dimension
    reshape: tuple[int, ...] | None = None  # the shape that the model receives or returns; None if it is `dims`
    optional: bool = False
    allow_ragged_batch: bool = False
    # File of the class labels of this output, relative to the model's directory; empty for none.
    label_filename: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """A group of identical instances."""

    name: str
    kind: InstanceKind
    count: int
    passive: bool = False
    host_policy: str = ""  # name of their host policy; empty for the default of their kind
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)  # no slots: what is rendered is kept
class ModelConfig:
    """The effective configuration of a model."""

    name: str
    platform: str = ""  # `ensemble`, a native backend's platform, or empty
    backend: str = ""
    runtime: str = ""  # library or `model.py` that runs the model; empty for the default
    max_batch_size: int = 0  # most rows of a batch; 0 for a model without a batch dimension
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    instance_groups: tuple[InstanceGroup, ...] = ()
    version_policy: VersionPolicy = field(default_factory=Latest)
    default_model_filename: str = ""
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    settings: ModelParameters = NO_PARAMETERS_GIVEN  # what the server itself reads of them
    decoupled: bool = False
    # The complete configuration; do not modify it.
    message: pb.ModelConfig = field(default_factory=pb.ModelConfig, repr=False)

    @cached_property
    def json(self) -> dict[str, Any]:
        """The JSON form of `message`, rendered when it is first used; do not modify it."""
        return to_json(self.message)

    @cached_property
    def json_text(self) -> str:
        return orjson.dumps(self.json).decode()


def freeze(message: pb.ModelConfig) -> ModelConfig:
    """Return the frozen values of a normalised and validated message, which is copied."""
    copy = deepcopy(message)
    return ModelConfig(
        name=copy.name,
        platform=copy.platform,
        backend=copy.backend,
        runtime=copy.runtime,
        max_batch_size=copy.max_batch_size,
        inputs=tuple(map(_freeze_tensor, copy.input)),
        outputs=tuple(map(_freeze_tensor, copy.output)),
        instance_groups=tuple(map(_freeze_group, copy.instance_group)),
        version_policy=freeze_version_policy(copy.version_policy) if copy.HasField("version_policy") else Latest(),
        default_model_filename=copy.default_model_filename,
        parameters=MappingProxyType({key: value.string_value for key, value in sorted(copy.parameters.items())}),
        settings=parse_parameters(copy),
        decoupled=copy.model_transaction_policy.decoupled,
        message=copy,
    )


def freeze_version_policy(policy: pb.ModelVersionPolicy) -> VersionPolicy:
    """The version policy of a normalised configuration.

    As in the reference, a policy without a choice, `version_policy { }`, is all versions. A configuration without a
    policy was given the latest version by `normalise`.
    """
    if policy.HasField("specific"):
        return Specific(tuple(policy.specific.versions))
    return Latest(policy.latest.num_versions) if policy.HasField("latest") else All()


class InstancePlacement(NamedTuple):
    """One instance: its name, and where it runs; the device of one that is not KIND_GPU is 0."""

    name: str
    kind: InstanceKind
    device_id: int = 0


def instance_names(config: ModelConfig) -> tuple[InstancePlacement, ...]:
    """A model's instances in order; their names are `<group>_<i>`, where i counts through the devices of the group.

    The default group has the name of the model, so its instance is `m_0`. An unnamed configured group is
    `<model>_<index>`, so its instance is `m_0_0` (see `normalise`). An ensemble has no instances.
    """
    groups = config.instance_groups
    if not groups and not config.message.HasField("ensemble_scheduling"):
        groups = (InstanceGroup(name=config.name, kind=InstanceKind.CPU, count=1),)
    return tuple(
        InstancePlacement(f"{group.name}_{index}", group.kind, device)
        for group in groups
        for index, device in enumerate(_devices(group))
    )


def _devices(group: InstanceGroup) -> list[int]:
    return [device for device in group.gpus or (0,) for _ in range(group.count)]


def instance_groups(config: ModelConfig) -> dict[str, pb.ModelInstanceGroup]:
    """The instance group of each instance, by the instance's name."""
    groups = config.message.instance_group
    return {
        f"{group.name}_{index}": group for group in groups for index in range(group.count * max(len(group.gpus), 1))
    }


def datatype_of(number: int) -> Datatype:
    """The datatype of a number in a message."""
    # proto3 accepts undeclared enum numbers; `validate` rejects them.
    return Datatype(number) if number in pb.DataType.DESCRIPTOR.values_by_number else Datatype.INVALID


def _freeze_tensor(tensor: pb.ModelInput | pb.ModelOutput) -> TensorConfig:
    frozen = TensorConfig(
        name=tensor.name,
        datatype=datatype_of(tensor.data_type),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
    )
    if isinstance(tensor, pb.ModelOutput):
        return replace(frozen, label_filename=tensor.label_filename)
    return replace(frozen, optional=tensor.optional, allow_ragged_batch=tensor.allow_ragged_batch)


def _freeze_group(group: pb.ModelInstanceGroup) -> InstanceGroup:
    return InstanceGroup(
        name=group.name,
        kind=InstanceKind[pb.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")],
        count=group.count,
        passive=group.passive,
        host_policy=group.host_policy,
        gpus=tuple(group.gpus),
    )
