"""Builds an ensemble's version from its configuration, after checking that its members are loaded and fit together.

Texts: CORE src/model_repository_manager/model_repository_manager.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.ensemble_checks import check_ensemble_members
from naiad.config.model.model_config import freeze
from naiad.config.model.validate import validate, validate_response_cache
from naiad.core.errors import ConfigError
from naiad.engine.calls.services import ModelServices
from naiad.engine.ensembles.execution import graph_of
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.lifecycle.dependencies import Dependencies, find_cycle
from naiad.engine.registry import ModelRecord, Registry
from naiad.engine.scheduling.ensembles.graph import EnsembleStep
from naiad.protocol.metadata import with_labels
from naiad.protocol.model_names import LATEST, model_key


def needed_models(message: pb.ModelConfig) -> frozenset[str]:
    """The keys of the models of an ensemble's steps; empty for a configuration without steps."""
    return frozenset(_key(step) for step in message.ensemble_scheduling.step)


def find_members(message: pb.ModelConfig, namespace: str, keys_of: Callable[[str], Collection[str]]) -> None:
    """Set the namespace of each step's model: the ensemble's own, else the only one that has such a model."""
    for step in message.ensemble_scheduling.step:
        found = find_key(step.model_name, namespace, keys_of)
        step.model_namespace = found.removesuffix(step.model_name).removesuffix("::")


def find_key(name: str, namespace: str, keys_of: Callable[[str], Collection[str]]) -> str:
    """The key of the model that *name* refers to in *namespace*; the name itself if that is unknown or ambiguous."""
    if not namespace:
        return name
    keys = keys_of(name)
    own = model_key(namespace, name)
    return own if own in keys else next(iter(keys)) if len(keys) == 1 else name


def _key(step: pb.ModelEnsembling.Step) -> str:
    return model_key(step.model_namespace, step.model_name)


def checked_ensemble(message: pb.ModelConfig, key: str, registry: Registry, needs: Dependencies) -> pb.ModelConfig:
    """An ensemble's configuration, completed with whether it is decoupled; the models of its steps must be loaded."""
    validate(message, with_io=True)
    last = find_cycle(key, needs)
    if last:
        raise ConfigError(f"circular dependency between ensembles: {key} -> ... -> {last} -> {key}")
    records = {name: registry.known(name) for name in sorted(needed_models(message))}
    missing = [name for name, record in records.items() if record is None or not (record.versions or record.reason)]
    if missing:
        raise ConfigError(f"ensemble {key} contains models that are not available or ambiguous: {', '.join(missing)}")
    for step in message.ensemble_scheduling.step:
        record = records[_key(step)]
        assert record is not None
        _check_loaded(key, record, step.model_version)
    members = {
        step.model_name: registry.find(_key(step), LATEST).config.message for step in message.ensemble_scheduling.step
    }
    result = pb.ModelConfig()
    result.CopyFrom(message)
    result.model_transaction_policy.decoupled = check_ensemble_members(message, members)
    return result


def _check_loaded(ensemble: str, record: ModelRecord, version: int) -> None:
    start = f"ensemble '{ensemble}' depends on '{record.key}'"
    if any(each.loaded is not None for each in record.versions.values()):
        if version != LATEST and (version not in record.versions or record.versions[version].loaded is None):
            raise ConfigError(f"{start} whose required version {version} is not loaded.")
        return
    if record.reason:
        raise ConfigError(f"{start} which is not valid. Model '{record.key}' failed with error: {record.reason}")
    reasons = "".join(
        f"version {number} is at {each.state.value} state: {each.reason};\n"
        for number, each in sorted(record.versions.items())
    )
    raise ConfigError(f"{start} which has no loaded version. Model '{record.key}' loading failed with error: {reasons}")


def make_ensemble(
    message: pb.ModelConfig, version: int, registry: Registry, services: ModelServices
) -> EnsembleVersion:
    """A loaded version of a checked ensemble."""
    validate_response_cache(message)
    graph = graph_of(message, [_step(step, registry) for step in message.ensemble_scheduling.step])
    made = EnsembleVersion(freeze(message), version, graph, registry, services.calls.on_ensemble_step_waiting)
    made.metadata = with_labels(made.metadata, _labels(message, registry))
    return made


def _step(step: pb.ModelEnsembling.Step, registry: Registry) -> EnsembleStep:
    return EnsembleStep(
        model=_key(step),
        version=step.model_version,
        inputs=tuple(sorted(step.input_map.items())),
        outputs=dict(sorted(step.output_map.items())),
        decoupled=registry.find(_key(step), step.model_version).config.decoupled,
    )


def _labels(message: pb.ModelConfig, registry: Registry) -> Mapping[str, tuple[str, ...]]:
    labels = {}
    for step in message.ensemble_scheduling.step:
        outputs = registry.find(_key(step), step.model_version).metadata.outputs
        known = {tensor.name: tensor.labels for tensor in outputs if tensor.labels}
        labels.update({made: known[name] for name, made in step.output_map.items() if name in known})
    return labels
