"""Whether an ensemble and the models of its steps fit together, with the reference's texts.

Needs the models' effective configurations, so they must have been loaded (CORE
src/ensemble_scheduler/ensemble_utils.cc).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.config.model import model_config_pb2 as pb
from naiad.errors import ConfigError

__all__ = ["check_members"]


@dataclass(slots=True)
class _Tensor:
    """A tensor of the ensemble.

    Attributes:
        model: Where datatype and shape were first found.
        datatype: Its datatype.
        dims: Its shape without the batch dimension.
        full_dims: Its shape with it.
        origin: Which decoupled step it comes from at last; 0 for none, None while unknown.
    """

    model: str
    datatype: pb.DataType.ValueType
    dims: Sequence[int]
    full_dims: Sequence[int]
    origin: int | None = None


@dataclass(slots=True)
class _Graph:
    name: str
    tensors: dict[str, _Tensor] = field(default_factory=dict)

    def add(self, tensor: str, found: _Tensor) -> None:
        """A tensor is given or taken somewhere: all places must agree."""
        known = self.tensors.setdefault(tensor, found)
        where = f"in ensemble {self.name}, ensemble tensor {tensor}: "
        if known.datatype != found.datatype:
            raise ConfigError(
                f"{where}inconsistent data type: {pb.DataType.Name(known.datatype)} is inferred from model "
                f"{known.model} while {pb.DataType.Name(found.datatype)} is inferred from model {found.model}"
            )
        # A batch of a model with batches may be one tensor of a model without.
        if not _agree(known.dims, found.dims) and not _agree(known.full_dims, found.full_dims):
            raise ConfigError(
                f"{where}inconsistent shape: {_shape(known.full_dims)} is inferred from model {known.model} while "
                f"{_shape(found.full_dims)} is inferred from model {found.model}"
            )


def check_members(message: pb.ModelConfig, members: Mapping[str, pb.ModelConfig]) -> bool:
    """Check an ensemble against the models of its steps.

    Args:
        message: The ensemble's configuration, which contradicts itself nowhere.
        members: Effective configurations of all models of its steps.

    Returns:
        Whether it may answer a request any number of times.

    Raises:
        ConfigError: At the first thing that does not fit.
    """
    graph = _Graph(message.name)
    for given in message.input:
        dims = given.reshape.shape if given.HasField("reshape") else given.dims
        graph.add(given.name, _tensor(message, given.data_type, dims))
    for asked in message.output:
        dims = asked.reshape.shape if asked.HasField("reshape") else asked.dims
        graph.add(asked.name, _tensor(message, asked.data_type, dims))
    for step in message.ensemble_scheduling.step:
        member = members[step.model_name]
        if 0 < member.max_batch_size < message.max_batch_size:
            raise ConfigError(
                f"ensemble {message.name} allows maximum batch size {message.max_batch_size}, but it contains model "
                f"{step.model_name} which only allows maximum batch size to be {member.max_batch_size}"
            )
        _check_inputs(graph, step, member)
        _check_outputs(graph, step, member)
    return _is_decoupled(message, members, graph)


def _check_inputs(graph: _Graph, step: pb.ModelEnsembling.Step, member: pb.ModelConfig) -> None:
    inputs = {tensor.name: tensor for tensor in member.input}
    for name, source in sorted(step.input_map.items()):
        if name not in inputs:
            raise ConfigError(
                f"in ensemble {graph.name}, ensemble tensor {source} is mapping to non-existing input {name} in model "
                f"{step.model_name}"
            )
    for name, tensor in inputs.items():
        if name in step.input_map:
            graph.add(step.input_map[name], _tensor(member, tensor.data_type, tensor.dims))
        elif not tensor.optional:
            raise ConfigError(
                f"in ensemble {graph.name}, input {name} in model {step.model_name} is not mapped to any ensemble "
                "tensors"
            )


def _check_outputs(graph: _Graph, step: pb.ModelEnsembling.Step, member: pb.ModelConfig) -> None:
    outputs = {tensor.name: tensor for tensor in member.output}
    for name, made in sorted(step.output_map.items()):
        if name not in outputs:
            raise ConfigError(
                f"in ensemble {graph.name}, ensemble tensor {made} is mapped from non-existing output {name} in model "
                f"{step.model_name}"
            )
    for name, made in sorted(step.output_map.items()):
        graph.add(made, _tensor(member, outputs[name].data_type, outputs[name].dims))


def _is_decoupled(message: pb.ModelConfig, members: Mapping[str, pb.ModelConfig], graph: _Graph) -> bool:
    """Follow the data; a step cannot join what comes from different decoupled steps.

    Raises:
        ConfigError: If one would have to.
    """
    tensors = graph.tensors
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


def _common_origin(tensors: Mapping[str, _Tensor], names: Iterable[str], model: str, ensemble: str) -> int:
    origins = {tensors[name].origin or 0 for name in names}
    if len(origins) > 1:
        raise ConfigError(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return next(iter(origins), 0)


def _tensor(message: pb.ModelConfig, datatype: pb.DataType.ValueType, dims: Iterable[int]) -> _Tensor:
    own = tuple(dims)
    return _Tensor(message.name, datatype, own, (-1, *own) if message.max_batch_size > 0 else own)


def _agree(dims: Sequence[int], others: Sequence[int]) -> bool:
    return len(dims) == len(others) and all(
        -1 in {one, other} or one == other for one, other in zip(dims, others, strict=True)
    )


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
