"""Examines ensembles: whether the models of their steps exist and their tensors match."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.ensemble_checks import check_ensemble_members
from naiad.config.model.validate import validate, validate_response_cache
from naiad.core.errors import ConfigError, NaiadError
from naiad.engine.ensembles.build import find_members, needed_models
from naiad.engine.lifecycle.dependencies import find_cycle
from naiad.protocol.model_names import model_key
from naiad_operations.doctor.model import ExaminedModel


def examine_ensembles(models: Mapping[str, ExaminedModel]) -> None:
    """Add findings to the ensembles among *models*, which must be all models of the repositories."""
    ensembles: dict[str, pb.ModelConfig] = {}
    for key, examined in models.items():
        if examined.message is not None and examined.message.HasField("ensemble_scheduling"):
            find_members(examined.message, examined.files.namespace, lambda name: _keys_of(name, models))
            ensembles[key] = examined.message
    needs = {key: needed_models(message) for key, message in ensembles.items()}
    for key, message in ensembles.items():
        try:
            validate(message, with_io=True)
            validate_response_cache(message)
            last = find_cycle(key, needs)
            if last:
                raise ConfigError(f"circular dependency between ensembles: {key} -> ... -> {last} -> {key}")
            _check_members(key, message, models)
        except NaiadError as error:
            models[key].add_error("config", error, where=str(models[key].files.directory))


def _keys_of(name: str, models: Mapping[str, ExaminedModel]) -> Collection[str]:
    return [key for key, examined in models.items() if examined.files.name == name]


def _check_members(key: str, message: pb.ModelConfig, models: Mapping[str, ExaminedModel]) -> None:
    missing = sorted(needed_models(message) - models.keys())
    if missing:
        raise ConfigError(f"ensemble {key} contains models that are not available or ambiguous: {', '.join(missing)}")
    members: dict[str, pb.ModelConfig] = {}
    for step in message.ensemble_scheduling.step:
        member = models[model_key(step.model_namespace, step.model_name)]
        if step.model_version not in (-1, *member.versions):
            raise ConfigError(
                f"ensemble '{key}' depends on '{member.files.key}' whose required version {step.model_version} is not "
                "loaded."
            )
        # A model without tensors completes its configuration on loading, or is broken, which another finding reports.
        if member.message is not None and member.message.input and member.message.output:
            members[step.model_name] = member.message
    if {step.model_name for step in message.ensemble_scheduling.step} == members.keys():
        check_ensemble_members(message, members)
