"""Checks of ensembles, first by themselves and then against the models of their steps.

`validate_ensemble` needs only the ensemble's configuration: every step is complete, and data flows from the inputs to
all outputs. `check_ensemble_members` also needs the effective configurations of the models, so these must be loaded.
Texts are the reference's (CORE src/model_config_utils.cc, src/ensemble_scheduler/ensemble_utils.cc).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import ConfigError

ENSEMBLE_PLATFORM = "ensemble"


@dataclass(slots=True)
class _DataFlow:
    is_output: bool = False
    is_ready: bool = False
    sources: list[str] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)


def validate_ensemble(message: pb.ModelConfig) -> None:
    """Check that every step is complete and that data flows from every input to every output."""
    _reject_model_settings(message)
    if not message.ensemble_scheduling.step:
        raise ConfigError(f"must specify 'step' for ensemble '{message.name}'")
    tensors = _connect(message)
    _propagate(message, tensors)
    for output in message.output:
        _validate_output(output.name, tensors, message.name)
    outputs = {output.name for output in message.output}
    for name, tensor in tensors.items():
        if name not in outputs and not (tensor.is_ready and tensor.uses):
            raise ConfigError(f"ensemble tensor '{name}' is unused in ensemble '{message.name}'")


def _reject_model_settings(message: pb.ModelConfig) -> None:
    if message.platform != ENSEMBLE_PLATFORM:
        raise ConfigError(
            f"ensemble scheduling cannot be set for model '{message.name}' whose platform is not {ENSEMBLE_PLATFORM}"
        )
    if message.instance_group:
        raise ConfigError(f"instance group should not be specified for ensemble '{message.name}'")
    if message.HasField("optimization"):
        raise ConfigError(f"optimization should not be specified for ensemble '{message.name}'")
    if message.model_warmup:
        raise ConfigError(f"model_warmup can not be specified for ensemble '{message.name}'")


def _connect(message: pb.ModelConfig) -> dict[str, _DataFlow]:
    tensors: dict[str, _DataFlow] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        where = f"in step {index} of ensemble '{message.name}'"
        for setting in ("model_name", "input_map", "output_map"):
            if not getattr(step, setting):
                raise ConfigError(f"must specify '{setting}' {where}")
        made = [step.output_map[key] for key in sorted(step.output_map)]
        for name in made:
            tensor = tensors.setdefault(name, _DataFlow())
            if tensor.is_output:
                raise ConfigError(
                    f"ensemble tensor '{name}' can appear in an output map only once for ensemble '{message.name}' "
                    f"step {index}"
                )
            tensor.is_output = True
        for key in sorted(step.input_map):
            source = step.input_map[key]
            tensors.setdefault(source, _DataFlow()).uses.extend(made)
            for name in made:
                tensors[name].sources.append(source)
    return tensors


def _propagate(message: pb.ModelConfig, tensors: dict[str, _DataFlow]) -> None:
    ready = []
    for given in message.input:
        if given.name not in tensors:
            # The unbalanced quotes below are the reference's.
            raise ConfigError(f"ensemble input '{given.name}' for ensemble {message.name}' is not used")
        tensors[given.name].is_ready = True
        ready.append(given.name)
    while ready:
        for name in tensors[ready.pop()].uses:
            tensor = tensors[name]
            if not tensor.is_ready and all(tensors[source].is_ready for source in tensor.sources):
                tensor.is_ready = True
                ready.append(name)


def _validate_output(name: str, tensors: dict[str, _DataFlow], ensemble: str) -> None:
    if name not in tensors:
        raise ConfigError(f"ensemble output '{name}' for ensemble {ensemble}' is not used")
    if tensors[name].is_ready:
        return
    missing = _first_missing(name, tensors)
    reason = f": at least one of its depending tensors, '{missing}', is not connected" if missing != name else ""
    raise ConfigError(f"output '{name}' for ensemble '{ensemble}' is not written{reason}")


def _first_missing(name: str, tensors: dict[str, _DataFlow]) -> str:
    """The first source without data, followed backwards from an output; a cycle ends where it began."""
    seen = {name}
    while True:
        missing = [s for s in tensors[name].sources if not tensors[s].is_ready and s not in seen]
        if not missing:
            return name
        name = missing[0]
        seen.add(name)


# The ensemble and the models of its steps.


@dataclass(slots=True)
class _TensorType:
    """Datatype and shape of a tensor of the ensemble, as its first use declares them."""

    model: str
    datatype: pb.DataType.ValueType
    dims: Sequence[int]
    full_dims: Sequence[int]
    origin: int | None = None  # number of the last decoupled step before it; 0 for none, None while unknown


@dataclass(slots=True)
class _TensorTypes:
    name: str
    tensors: dict[str, _TensorType] = field(default_factory=dict)

    def add(self, tensor: str, found: _TensorType) -> None:
        known = self.tensors.setdefault(tensor, found)
        where = f"in ensemble {self.name}, ensemble tensor {tensor}: "
        if known.datatype != found.datatype:
            raise ConfigError(
                f"{where}inconsistent data type: {pb.DataType.Name(known.datatype)} is inferred from model "
                f"{known.model} while {pb.DataType.Name(found.datatype)} is inferred from model {found.model}"
            )
        # A batch of a model with a batch dimension may be one tensor of a model without.
        if not _agree(known.dims, found.dims) and not _agree(known.full_dims, found.full_dims):
            raise ConfigError(
                f"{where}inconsistent shape: {_shape(known.full_dims)} is inferred from model {known.model} while "
                f"{_shape(found.full_dims)} is inferred from model {found.model}"
            )


def check_ensemble_members(message: pb.ModelConfig, members: Mapping[str, pb.ModelConfig]) -> bool:
    """Check a valid ensemble against the effective configurations of its steps' models; whether it is decoupled."""
    types = _TensorTypes(message.name)
    declared: list[pb.ModelInput | pb.ModelOutput] = [*message.input, *message.output]
    for tensor in declared:
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        types.add(tensor.name, _tensor_type(message, tensor.data_type, dims))
    for step in message.ensemble_scheduling.step:
        member = members[step.model_name]
        if 0 < member.max_batch_size < message.max_batch_size:
            raise ConfigError(
                f"ensemble {message.name} allows maximum batch size {message.max_batch_size}, but it contains model "
                f"{step.model_name} which only allows maximum batch size to be {member.max_batch_size}"
            )
        _check_inputs(types, step, member)
        _check_outputs(types, step, member)
    return _is_decoupled(message, members, types)


def _check_inputs(types: _TensorTypes, step: pb.ModelEnsembling.Step, member: pb.ModelConfig) -> None:
    inputs = {tensor.name: tensor for tensor in member.input}
    for name, source in sorted(step.input_map.items()):
        if name not in inputs:
            raise ConfigError(
                f"in ensemble {types.name}, ensemble tensor {source} is mapping to non-existing input {name} in model "
                f"{step.model_name}"
            )
    for name, tensor in inputs.items():
        if name in step.input_map:
            types.add(step.input_map[name], _tensor_type(member, tensor.data_type, tensor.dims))
        elif not tensor.optional:
            raise ConfigError(
                f"in ensemble {types.name}, input {name} in model {step.model_name} is not mapped to any ensemble "
                "tensors"
            )


def _check_outputs(types: _TensorTypes, step: pb.ModelEnsembling.Step, member: pb.ModelConfig) -> None:
    outputs = {tensor.name: tensor for tensor in member.output}
    for name, made in sorted(step.output_map.items()):
        if name not in outputs:
            raise ConfigError(
                f"in ensemble {types.name}, ensemble tensor {made} is mapped from non-existing output {name} in model "
                f"{step.model_name}"
            )
        types.add(made, _tensor_type(member, outputs[name].data_type, outputs[name].dims))


def _is_decoupled(message: pb.ModelConfig, members: Mapping[str, pb.ModelConfig], types: _TensorTypes) -> bool:
    """Whether some step is decoupled, found by following the data.

    Responses of two decoupled steps cannot be matched with each other, so a step must not have inputs of both.
    """
    tensors = types.tensors
    for given in message.input:
        tensors[given.name].origin = 0
    origins = 0
    left = list(message.ensemble_scheduling.step)
    while left:
        ready = [step for step in left if all(tensors[name].origin is not None for name in step.input_map.values())]
        for step in ready:
            taker = tensors[min(step.output_map.values())].model  # the reference's way to name a step
            origin = _common_origin(tensors, step.input_map.values(), taker, message.name)
            if members[step.model_name].model_transaction_policy.decoupled:
                origins += 1
                origin = origins
            for made in step.output_map.values():
                tensors[made].origin = origin
        left = [step for step in left if not any(step is done for done in ready)]
        if not ready:
            break
    _common_origin(tensors, [output.name for output in message.output], message.name, message.name)
    return origins > 0


def _common_origin(tensors: Mapping[str, _TensorType], names: Iterable[str], model: str, ensemble: str) -> int:
    origins = {tensors[name].origin or 0 for name in names}
    if len(origins) > 1:
        raise ConfigError(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return next(iter(origins), 0)


def _tensor_type(message: pb.ModelConfig, datatype: pb.DataType.ValueType, dims: Iterable[int]) -> _TensorType:
    own = tuple(dims)
    return _TensorType(message.name, datatype, own, (-1, *own) if message.max_batch_size > 0 else own)


def _agree(dims: Sequence[int], others: Sequence[int]) -> bool:
    return len(dims) == len(others) and all(
        -1 in {one, other} or one == other for one, other in zip(dims, others, strict=True)
    )


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
