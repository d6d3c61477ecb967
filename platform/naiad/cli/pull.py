"""`naiad pull`: brings a model repository from a registry into the store, and optionally into a folder."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from naiad.cli.command_line import CommandLine, run_command, server_flag, store_of
from naiad.cli.json_output import json_option, print_json
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import UsageError
from naiad.config.server.option_group import flags_of, own_option, own_path
from naiad.core.errors import RegistryError
from naiad.core.quantities import size_text
from naiad.environments.progress import default_reporter
from naiad.environments.store.pulled import complete_reference
from naiad.models.artifacts.policy import artifact_policy
from naiad.models.artifacts.repository import open_artifact
from naiad.models.artifacts.store import ArtifactStore, copy_repository
from naiad.sources.registry.client import open_registry
from naiad.sources.registry.references import parse_reference

_PROGRAM = "naiad pull oci://REGISTRY/NAME:TAG"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """The flags of `naiad pull`."""

    output: Path | None = own_path("output", "Folder to write the repository into, too; it must not exist.")
    models: list[str] = own_option("model", "Pull this model with what it needs; default: all.", repeatable=True)
    is_json: bool = json_option()


OWN_FLAGS = flags_of("Pull (also takes --env-store, --require-signature and --env-trust of the server)", PullOptions)


def pull(arguments: Sequence[str]) -> int:
    """Pull a repository; returns the exit code."""
    return run_command(arguments, PullOptions, OWN_FLAGS, _PROGRAM, "pull", _pull)


def _pull(line: CommandLine, own: PullOptions) -> int:
    if len(line.positional) != 1:
        raise UsageError(f"cannot pull: give one reference: {_PROGRAM}")
    location = complete_reference(store_of(line), line.positional[0])
    output = own.output and own.output.absolute()
    if output is not None and output.exists():
        raise RegistryError(f"cannot pull into {output}: it exists; choose another folder")
    reference = parse_reference(location)
    options = read_options([(server_flag("model-repository"), location), *line.server], environ=os.environ)
    policy = artifact_policy(options)
    logging.getLogger("naiad").setLevel(logging.WARNING)
    client, store = open_registry(reference), ArtifactStore(policy.store, default_reporter())
    artifact = open_artifact(client, store, policy)
    lease = store.lease(artifact)
    chosen = own.models
    unknown = sorted(set(chosen) - set(artifact.models))
    if unknown:
        raise RegistryError(
            f"cannot pull model '{unknown[0]}': {artifact.reference} has no such model; its models are "
            f"{', '.join(artifact.models)}"
        )
    layers = [layer for model in chosen for layer in artifact.layers_of(model)] if chosen else list(artifact.layers)
    layers = list(dict.fromkeys([*layers, *artifact.signatures]))
    store.fetch(client, artifact, layers)
    repository = store.repository(artifact)
    if output is not None:
        _write(repository, output, [layer.folder for layer in layers])
    for model in chosen or artifact.models:
        store.record_model(artifact, model)
    lease.release()
    size, models = sum(layer.size for layer in layers), sorted(chosen or artifact.models)
    place = output or repository
    if own.is_json:
        reference_text = str(artifact.reference)
        print_json(
            {"reference": reference_text, "models": models, "layers": len(layers), "size": size, "folder": place}
        )
        return 0
    print(f"pulled {artifact.reference}: {', '.join(models)} ({len(layers)} layers, {size_text(size)}) in {place}")
    return 0


def _write(repository: Path, output: Path, parts: Sequence[str]) -> None:
    """Copy parts of a pulled repository into a folder that appears when it is complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    # One name, so that the next pull removes what an interrupted one left.
    staging = output.with_name(f".{output.name}.naiad-pull")
    lock = staging.with_suffix(".lock")
    with FileLock(lock):
        shutil.rmtree(staging, ignore_errors=True)
        copy_repository(repository, staging, parts)
        staging.rename(output)
        lock.unlink(missing_ok=True)
