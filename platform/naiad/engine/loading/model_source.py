"""The source of a model to load: a repository, or files and a configuration sent with a load request."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.gpu_placement import GpuPlacement
from naiad.config.model.parameters import ModelParameters, parse_parameters
from naiad.core.errors import Code, NaiadError
from naiad.models.repository.layout import ModelFiles, explain_no_model, models_named
from naiad.models.repository.override import LoadOverride, TemporaryModelDirectory, check_model_name, parse_override
from naiad.models.repository.read import config_path, freeze_file, read_config
from naiad.models.repository.repositories import Repositories
from naiad.protocol.inference import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to load."""

    files: ModelFiles
    override: LoadOverride | None = None  # a configuration that replaces the one in its files; None for none
    # Holds files sent with the request, as long as a version loaded from them serves; None if none were.
    directory: TemporaryModelDirectory | None = None
    # Versions to leave as they are if they serve, because their files have not changed.
    kept: frozenset[int] = frozenset()

    def read_config(self, *, strict: bool, config_name: str, gpus: GpuPlacement | None = None) -> pb.ModelConfig:
        """Its configuration, completed, normalised and validated; blocks."""
        if self.override is not None:
            return self.override.prepared_config(self.files, strict=strict, gpus=gpus)
        return read_config(self.files, strict=strict, config_name=config_name, gpus=gpus)

    def parameters(self, message: pb.ModelConfig, *, config_name: str) -> ModelParameters:
        """The server's own parameters in its configuration, as `read_config` has returned it; blocks.

        An invalid one is reported with its place, if the configuration is in a file.
        """
        if self.override is not None:
            return parse_parameters(message)
        return freeze_file(message, config_path(self.files, config_name)).settings


def find_sources(
    name: str,
    parameters: Mapping[str, str | Buffer],
    repositories: Repositories,
    *,
    strict: bool,
    gpus: GpuPlacement | None = None,
) -> list[ModelSource]:
    """The sources of the models that a load request names: one, or one in each namespace; blocks.

    A configuration sent with the request is checked here, before any state of the model changes: an invalid request
    must not mark a serving model as failed.
    """
    check_model_name(name)
    try:
        override = parse_override(name, parameters)
        if override is not None:
            repositories.refuse_sent(name, "files" if override.contents else "configuration")
        directory = override.make_directory() if override is not None and override.contents else None
        models = repositories.scan().models if directory is None else {}
        found = [directory.files] if directory is not None else models_named(name, models)
        for files in found:
            if override is None:
                break
            repositories.fetch(files)
            override.prepared_config(files, strict=strict, gpus=gpus)
    except NaiadError as error:
        raise _not_found(name, error.message) from error
    if not found:
        raise in_no_repository(name, models, repositories.locations)
    return [ModelSource(files=files, override=override, directory=directory) for files in found]


def in_no_repository(name: str, models: Iterable[str], locations: Iterable[str]) -> NaiadError:
    """The error for a model that is to be loaded and is in no repository, with the nearest name of those that are."""
    near = difflib.get_close_matches(name, models, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    # A location may be a URI, which is not a directory of this machine.
    for directory in (Path(location, name) for location in locations):
        if directory.is_dir() and (why := explain_no_model(directory)):
            hint = f"; '{directory}' is not a model: {why}"
    looked = ", ".join(f"'{location}'" for location in locations)
    return _not_found(name, f"looked in {looked}{hint}")


def _not_found(name: str, why: str) -> NaiadError:
    return NaiadError(f"failed to load '{name}', failed to poll from model repository ({why})", code=Code.INTERNAL)
