"""Ensembles that contradict themselves, with the reference's texts.

Only what one configuration shows: whether the steps' models exist and take what they are given is known later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from naiad.config.model import model_config_pb2 as pb
from naiad.errors import ConfigError

__all__ = ["ENSEMBLE_PLATFORM", "validate_ensemble"]

ENSEMBLE_PLATFORM = "ensemble"


@dataclass(slots=True)
class _Tensor:
    """A tensor of the ensemble: what it is made from, what is made from it, whether it is ever there."""

    is_output: bool = False
    is_ready: bool = False
    made_from: list[str] = field(default_factory=list)
    used_for: list[str] = field(default_factory=list)


def validate_ensemble(message: pb.ModelConfig) -> None:
    """Check that every step is whole and that data flows from every input to every output.

    Raises:
        ConfigError: At the first contradiction.
    """
    _refuse_model_settings(message)
    if not message.ensemble_scheduling.step:
        raise ConfigError(f"must specify 'step' for ensemble '{message.name}'")
    tensors = _connect(message)
    _let_flow(message, tensors)
    for output in message.output:
        _validate_output(output.name, tensors, message.name)
    outputs = {output.name for output in message.output}
    for name, tensor in tensors.items():
        if name not in outputs and not (tensor.is_ready and tensor.used_for):
            raise ConfigError(f"ensemble tensor '{name}' is unused in ensemble '{message.name}'")


def _refuse_model_settings(message: pb.ModelConfig) -> None:
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


def _connect(message: pb.ModelConfig) -> dict[str, _Tensor]:
    """Build the graph of tensors from the steps."""
    tensors: dict[str, _Tensor] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        where = f"in step {index} of ensemble '{message.name}'"
        for setting in ("model_name", "input_map", "output_map"):
            if not getattr(step, setting):
                raise ConfigError(f"must specify '{setting}' {where}")
        made = [step.output_map[key] for key in sorted(step.output_map)]
        for name in made:
            tensor = tensors.setdefault(name, _Tensor())
            if tensor.is_output:
                raise ConfigError(
                    f"ensemble tensor '{name}' can appear in an output map only once for ensemble '{message.name}' "
                    f"step {index}"
                )
            tensor.is_output = True
        for key in sorted(step.input_map):
            source = step.input_map[key]
            tensors.setdefault(source, _Tensor()).used_for.extend(made)
            for name in made:
                tensors[name].made_from.append(source)
    return tensors


def _let_flow(message: pb.ModelConfig, tensors: dict[str, _Tensor]) -> None:
    """Mark the tensors that will be there once the inputs are."""
    ready = []
    for given in message.input:
        if given.name not in tensors:
            # The one quote is the reference's.
            raise ConfigError(f"ensemble input '{given.name}' for ensemble {message.name}' is not used")
        tensors[given.name].is_ready = True
        ready.append(given.name)
    while ready:
        for name in tensors[ready.pop()].used_for:
            tensor = tensors[name]
            if not tensor.is_ready and all(tensors[source].is_ready for source in tensor.made_from):
                tensor.is_ready = True
                ready.append(name)


def _validate_output(name: str, tensors: dict[str, _Tensor], ensemble: str) -> None:
    if name not in tensors:
        raise ConfigError(f"ensemble output '{name}' for ensemble {ensemble}' is not used")
    if tensors[name].is_ready:
        return
    culprit = _first_missing(name, tensors)
    reason = f": at least one of its depending tensors, '{culprit}', is not connected" if culprit != name else ""
    raise ConfigError(f"output '{name}' for ensemble '{ensemble}' is not written{reason}")


def _first_missing(name: str, tensors: dict[str, _Tensor]) -> str:
    """Follow what is missing back to where it should come from; a circle ends where it began."""
    seen = {name}
    while True:
        missing = [s for s in tensors[name].made_from if not tensors[s].is_ready and s not in seen]
        if not missing:
            return name
        name = missing[0]
        seen.add(name)
