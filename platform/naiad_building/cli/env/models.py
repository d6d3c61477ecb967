"""Which environments the models of repositories use."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.server.command_line import read_options
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.core.errors import NaiadError
from naiad.models.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.models.repository.read import read_frozen_config
from naiad.models.repository.repositories import open_repositories_of
from naiad.models.resolution.resolve import ResolutionSettings, resolution_settings, resolve

_log = logging.getLogger("naiad.cli")


def server_options(store: Path, repositories: Sequence[str], *flags: str) -> ServerOptions:
    """The options of a server that was started with these repositories, this store and these flags."""
    given = [f"--env-store={store}", *(f"--model-repository={name}" for name in repositories), *flags]
    return read_options(split_arguments(given, SERVER_FLAGS, "naiad env")[0], environ=os.environ)


class UsedEnvironment(NamedTuple):
    """An environment that a version of a model names, and the Python that the version requires (None: any)."""

    model: str
    source: Path | EnvironmentSource
    python: SpecifierSet | None
    python_origin: str


def environments_of(options: ServerOptions) -> Iterator[UsedEnvironment]:
    """The environments of all models: one for each version that a server would load and that names an environment.

    A model with an invalid configuration is skipped with a warning: a server would not load it either.
    """
    settings = resolution_settings(options)
    repositories = open_repositories_of(options)
    try:
        for name, files in repositories.scan().models.items():
            try:
                repositories.fetch(files)
                found = list(_of_model(name, files, options, settings))
            except NaiadError as error:
                _log.warning("model '%s': %s", name, error.message)
                continue
            yield from found
    finally:
        repositories.close()


def _of_model(
    name: str, files: ModelFiles, options: ServerOptions, settings: ResolutionSettings
) -> Iterator[UsedEnvironment]:
    config = read_frozen_config(files, options.models)
    if config.platform == "ensemble":
        return
    for version in versions_to_load(config.version_policy, available_versions(files), files.name):
        found = resolve(config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri)
        if found.environment is not None:
            yield UsedEnvironment(name, found.environment, found.python, found.python_origin)
