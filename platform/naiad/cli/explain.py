"""`naiad explain`: what would run a model, and why, without running it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from naiad.cli.serve import log_settings, open_log
from naiad.cli.usage import report, usage
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError, parse_value
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.errors import NaiadError, OptionError, RepositoryError, ResolutionError
from naiad.repository.layout import ModelFiles, available_versions, models_named, versions_to_load
from naiad.repository.read import read_config
from naiad.repository.repositories import Repositories, open_repositories
from naiad.resolution.decision import Resolution, ResolutionSettings, Step
from naiad.resolution.explain import PreparedEnvironment, explain_plainly, explain_richly, explain_steps
from naiad.resolution.resolve import check_stub_supports, resolve
from naiad.resolution.settings import resolution_settings

__all__ = ["explain"]

_GROUP = "Explain (all flags of the server work, too; --model-repository is needed)"
_PREPARE = Flag("prepare", Kind.NOTHING, "", "Prepare the environment, too, and say what is in it.", own=True)
_VERSION = Flag("version", Kind.INTEGER, "", "Explain this version; all that would be loaded unless given.", own=True)
_REPOSITORY = "model-repository"
_OWN_FLAGS = tuple(replace(flag, group=_GROUP) for flag in (_PREPARE, _VERSION))
_SHOWN_FLAGS = (
    *_OWN_FLAGS,
    *(replace(flag, group=_GROUP) for flag in SERVER_FLAGS if flag.name in {_REPOSITORY, HELP}),
)


def explain(arguments: Sequence[str]) -> int:
    """Print what would run a model under the flags of a server; the exit code."""
    program = "naiad explain MODEL"
    try:
        found, others = split_arguments(arguments, (*_OWN_FLAGS, *SERVER_FLAGS), program)
        if any(flag.name == HELP for flag, _ in found):
            print(usage(program, _SHOWN_FLAGS), end="")
            return 0
        if len(others) != 1:
            raise OptionError(f"{program}: name one model. Got {', '.join(others) or 'none'}")
        if not any((flag.same_as or flag.name) == _REPOSITORY for flag, _ in found):
            raise OptionError(f"{program}: say where the model is: --model-repository=DIRECTORY")
        own_names = {flag.name for flag in _OWN_FLAGS}
        options = read_options([(flag, text) for flag, text in found if flag.name not in own_names], environ=os.environ)
        versions = [parse_value(flag, text) for flag, text in found if flag.name == _VERSION.name]
        prepare = any(flag.name == _PREPARE.name for flag, _ in found)
        with open_log(replace(log_settings(options), info=prepare)):
            return _explain(others[0], options, version=int(versions[-1]) if versions else None, prepare=prepare)
    except UsageError as error:
        return report(error, program, _SHOWN_FLAGS)
    except NaiadError as error:
        if isinstance(error, ResolutionError) and error.decided:
            print(explain_steps(step for step in error.decided if isinstance(step, Step)), flush=True)
        print(error.message, file=sys.stderr)
        return 1


def _explain(model: str, options: ServerOptions, *, version: int | None, prepare: bool) -> int:
    repositories = open_repositories(options.models.repositories, is_namespaced=options.models.is_namespaced)
    try:
        _explain_of(_find(model, repositories), options, version=version, prepare=prepare)
    finally:
        repositories.close()
    return 0


def _explain_of(files: ModelFiles, options: ServerOptions, *, version: int | None, prepare: bool) -> None:
    model = files.name
    config = freeze(read_config(files, strict=not options.models.auto_complete, config_name=options.models.config_name))
    if config.platform == "ensemble":
        print(f"model '{model}' is an ensemble: other models run it")
        return
    available = available_versions(files)
    if version is not None and version not in available:
        raise RepositoryError(f"model '{model}' has no version {version}; it has {', '.join(map(str, available))}")
    versions = (version,) if version is not None else versions_to_load(config.version_policy, available, model)
    settings = resolution_settings(options)
    for number in versions:
        _explain_version(config, files, number, settings, options if prepare else None)


def _find(model: str, repositories: Repositories) -> ModelFiles:
    found = repositories.scan()
    named = models_named(model, found.models)
    if len(named) == 1:
        repositories.fetch(named[0])
        return named[0]
    if named:
        places = ", ".join(str(files.directory) for files in named)
        raise RepositoryError(f"model '{model}' is in two or more namespaces, name one repository alone: {places}")
    if model in found.duplicates:
        places = ", ".join(str(files.directory) for files in found.duplicates[model])
        raise RepositoryError(f"model '{model}' is not loaded, as it is in two or more repositories: {places}")
    near = difflib.get_close_matches(model, found.models, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise RepositoryError(f"there is no model '{model}' in {', '.join(repositories.given)}{hint}")


def _explain_version(
    config: ModelConfig, files: ModelFiles, version: int, settings: ResolutionSettings, preparing: ServerOptions | None
) -> None:
    resolution = resolve(config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri)
    environment = None if preparing is None else _prepare(resolution, preparing)
    if sys.stdout.isatty():
        from rich.console import Console

        explain_richly(resolution, Console(), environment)
    else:
        print(explain_plainly(resolution, environment), end="")


def _prepare(resolution: Resolution, options: ServerOptions) -> PreparedEnvironment:
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.policy import store_policy

    manager = EnvironmentManager(options.environments.store, policy=store_policy(options))
    ready: PreparedEnvironment = manager.prepare(
        resolution.environment, python=resolution.python, label=resolution.model
    )
    check_stub_supports(resolution, ".".join(map(str, ready.version)))
    return ready
