"""`naiad explain`: shows what would run a model, with the reason for each choice, without running the model."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.cli.command_line import CommandLine, is_directory, run_command, server_flag, wrong_arguments
from naiad.cli.json_output import json_option, print_json
from naiad.cli.serve import log_settings, open_log
from naiad.config.model.model_config import ModelConfig
from naiad.config.model.parameters import modules_to_prewarm, or_default
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind
from naiad.config.server.option_group import flags_of, own_option, own_switch
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.core.errors import NaiadError, OptionError, RepositoryError, ResolutionError
from naiad.engine.lifecycle.process_placement import (
    COORDINATOR,
    LoadFacts,
    Placement,
    describe_ensemble,
    describe_placement,
    place_ensemble,
    place_instances,
)
from naiad.environments.store.opening import open_store
from naiad.models.repository.layout import ModelFiles, available_versions, models_named, versions_to_load
from naiad.models.repository.read import read_frozen_config
from naiad.models.repository.repositories import Repositories, open_repositories_of
from naiad.models.resolution.decision import Decision, Resolution
from naiad.models.resolution.explain import explain_plainly, explain_steps, resolution_as_json, steps_as_json
from naiad.models.resolution.preparation import check_interpreter, prepare_environment
from naiad.models.resolution.resolve import resolution_settings, resolve

if TYPE_CHECKING:
    from naiad.environments.ready_environment import ReadyEnvironment

_PROGRAM = "naiad explain MODEL"
_ENSEMBLE = (
    "its requests are executed where they arrive if that process has instances of all of these models, else in 0"
)
_REPOSITORY = "model-repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The flags of `naiad explain`."""

    prepares: bool = own_switch("prepare", "Prepare the environment, too, and show its contents.")
    version: int | None = own_option(
        "version", "Explain this version; default: all versions that a server would load.", Kind.INTEGER
    )
    is_json: bool = json_option()


OWN_FLAGS = flags_of(
    "Explain (also takes all flags of the server; without --model-repository, MODEL is a model's directory)",
    ExplainOptions,
)


def explain(arguments: Sequence[str]) -> int:
    """Print what would run a model under the flags of a server; returns the exit code."""
    return run_command(arguments, ExplainOptions, OWN_FLAGS, _PROGRAM, "explain", _explain_line, listed=[_REPOSITORY])


def _explain_line(line: CommandLine, own: ExplainOptions) -> int:
    if len(line.positional) != 1:
        raise wrong_arguments(_PROGRAM, "one model", line.positional)
    model, place = _model_and_repository(line)
    options = read_options([*place, *line.server], environ=os.environ)
    try:
        # Preparing an environment may take minutes, so its progress is shown.
        log = open_log(replace(log_settings(options), info=own.prepares))
        with log, closing(open_repositories_of(options)) as repositories:
            _explain(_find_model(model, repositories), options, own)
    except NaiadError as error:
        decided = error.decided if isinstance(error, ResolutionError) else ()
        steps = [step for step in decided if isinstance(step, Decision)]
        if own.is_json:
            print_json({"error": error.message, "decisions": steps_as_json(steps)})
        elif steps:
            print(explain_steps(steps), flush=True)
        raise
    return 0


def _model_and_repository(line: CommandLine) -> tuple[str, list[tuple[Flag, str]]]:
    """The model's name, and the flag for its repository where the command line names the model by its directory."""
    model: str = line.positional[0]
    if line.has_server_flag(_REPOSITORY):
        return model, []
    directory = Path(model).absolute()
    if not is_directory(directory):
        raise OptionError(
            f"{_PROGRAM}: no repository is named, and '{model}' is not a directory; add --model-repository=DIRECTORY, "
            "or type the model's directory"
        )
    return directory.name, [(server_flag(_REPOSITORY), str(directory.parent))]


def _explain(files: ModelFiles, options: ServerOptions, own: ExplainOptions) -> None:
    model = files.name
    config = read_frozen_config(files, options.models)
    if config.platform == "ensemble":
        _explain_ensemble(config, options, as_json=own.is_json)
        return
    available = available_versions(files)
    if own.version is None:
        versions = versions_to_load(config.version_policy, available, model, files.directory)
    elif own.version in available:
        versions = (own.version,)
    else:
        raise RepositoryError(
            f"cannot explain model '{model}': it has no version {own.version}; its versions are "
            f"{', '.join(map(str, available))}"
        )
    open_store(options.environments.store)
    settings = resolution_settings(options)
    explained = []
    for number in versions:
        found = resolve(config, model_dir=files.directory, version=number, settings=settings, model_uri=files.uri)
        environment = _prepare(found, options) if own.prepares else None
        placement = _placement(config, found, options)
        if own.is_json:
            places = {"processes": list(placement.processes), "processes_reason": placement.reason}
            shown = places if options.general.processes > 1 else {}
            explained.append({**resolution_as_json(found, environment), **shown})
        else:
            print(explain_plainly(found, environment), end="")
            if options.general.processes > 1:
                print(f"instances: {describe_placement(config, placement)}")
    if own.is_json:
        print_json({"model": model, "is_ensemble": False, "versions": explained})


def _explain_ensemble(config: ModelConfig, options: ServerOptions, *, as_json: bool) -> None:
    steps = list(dict.fromkeys(step.model_name for step in config.message.ensemble_scheduling.step))
    # With instances of all models in another process, only its own configuration keeps it in the coordinator.
    placement = place_ensemble(config, [(COORDINATOR + 1,)], is_cached=bool(options.cache.size))
    rule = _ENSEMBLE if placement.is_spread else describe_ensemble(placement)
    has_processes = options.general.processes > 1
    if as_json:
        shown = {"processes_reason": rule} if has_processes else {}
        print_json({"model": config.name, "is_ensemble": True, "steps": steps, **shown, "versions": []})
        return
    print(f"model '{config.name}' is an ensemble: other models run it: {', '.join(steps)}")
    if has_processes:
        print(f"requests: {rule}")


def _placement(config: ModelConfig, resolution: Resolution, options: ServerOptions) -> Placement:
    is_demand = options.models.control_mode is ModelControlMode.DEMAND
    facts = LoadFacts(
        is_native=resolution.library is not None,
        is_forked=bool(modules_to_prewarm(config.settings.prewarmed_modules, by_default=options.guests.prewarm)),
        is_on_demand=or_default(config.settings.is_on_demand, is_demand),
        is_cached=bool(options.cache.size),
        is_rate_limited=options.rate_limit.resources is not None,
    )
    return place_instances(config, facts, options.general.processes)


def _find_model(model: str, repositories: Repositories) -> ModelFiles:
    scan = repositories.scan()
    named = models_named(model, scan.models)
    if len(named) == 1:
        repositories.fetch(named[0])
        return named[0]
    if named:
        places = ", ".join(str(files.directory) for files in named)
        raise RepositoryError(
            f"cannot choose a model '{model}': several namespaces have one ({places}); name one repository only"
        )
    if model in scan.duplicates:
        places = ", ".join(str(files.directory) for files in scan.duplicates[model])
        raise RepositoryError(
            f"cannot load model '{model}': several repositories have one ({places}); rename or remove all but one"
        )
    near = difflib.get_close_matches(model, scan.models, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise RepositoryError(f"cannot find model '{model}' in {', '.join(repositories.locations)}{hint}")


def _prepare(resolution: Resolution, options: ServerOptions) -> ReadyEnvironment:
    # Imported only for --prepare: these modules unpack archives and take longer to import than all others here.
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.policy import store_policy

    manager = EnvironmentManager(options.environments.store, policy=store_policy(options))
    ready = prepare_environment(resolution, manager, resolution.model)
    check_interpreter(resolution, ready.version)
    return ready
