"""Examines everything that a server with some options would use: models, environments, store, ports, memory.

The doctor adds few rules. It calls the functions that the server calls (configuration, resolution,
environments, ensembles) and turns their errors into findings, so that it cannot disagree with the server. Models are
examined in parallel, because most of the time is spent in interpreters of their environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace

from naiad_stub.process_limits import usable_processors

from naiad.config.server.options import ServerOptions
from naiad.core.errors import RepositoryError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.opening import open_store
from naiad.guests.memory.machine import require_proc
from naiad.models.repository.layout import ModelFiles, RepositoryScan, models_named
from naiad.models.repository.repositories import Repositories, open_repositories_of
from naiad.models.resolution.resolve import resolution_settings
from naiad_operations.doctor.ensembles import examine_ensembles
from naiad_operations.doctor.findings import Examination, Finding, Severity, error_finding, warning_finding
from naiad_operations.doctor.gpus import examine_gpus
from naiad_operations.doctor.machine import (
    examine_interpreter,
    examine_memory,
    examine_ports,
    examine_store,
    examine_temporary,
)
from naiad_operations.doctor.migration import migration_items
from naiad_operations.doctor.model import ExaminationContext, ExaminedModel, examine_model

_SILENT_SECONDS = 5.0  # an interpreter that hangs is waited for a minute; a person who sees nothing gives up earlier
# Environments of some gigabytes are installed for minutes: a line every five seconds would hide the findings.
_LONGEST_SILENCE = 80.0


def examine(
    options: ServerOptions,
    reporter: ProgressReporter,
    *,
    only: Sequence[str] = (),
    can_unpack: bool = True,
    assumed_gpus: int | None = None,
    on_waiting: Callable[[Mapping[str, str]], None] | None = None,
) -> Examination:
    """The findings about a server with these options: its models, its store, its ports and its memory.

    Args:
        can_unpack: Whether archives may be unpacked into the store, as a server would do.
        assumed_gpus: How many GPUs the server's machine has; None for those of this machine.
        on_waiting: Called with the names of unfinished models after some seconds in which none was finished, and
            less and less often while they stay the same. The values say what is being done to build their environments;
            they are empty for models whose environments are not being built.

    Raises:
        NaiadError: If nothing can be examined: /proc is missing, a repository cannot be read, or the guest's files
            cannot be written.
    """
    require_proc()
    with closing(open_repositories_of(options)) as repositories:
        examination = Examination(tuple(map(str, repositories.locations)))
        examination.findings += examine_store(open_store(options.environments.store))
        if examination.count(Severity.ERROR):
            return examination  # without a store, no environment can be prepared
        context = ExaminationContext(
            options=options,
            resolution=resolution_settings(options),
            environments=EnvironmentManager(
                options.environments.store, reporter=reporter, policy=store_policy(options), waits=False
            ),
            reporter=reporter,
            can_unpack=can_unpack,
            assumed_gpus=assumed_gpus,
        )
        _examine_models(examination, repositories, context, only, on_waiting)
    examination.findings += [*examine_temporary(), *examine_ports(options), *examine_interpreter()]
    examination.findings += examine_gpus(context.resolution.guest.library_dir)
    return examination


def _examine_models(
    examination: Examination,
    repositories: Repositories,
    context: ExaminationContext,
    only: Sequence[str],
    on_waiting: Callable[[Mapping[str, str]], None] | None,
) -> None:
    scan = repositories.scan()
    wanted = _wanted(scan, only)
    # All models are examined, also those that are not wanted: a wanted ensemble may contain them. Their archives stay
    # packed and their libraries unloaded, because an ensemble needs nothing of them.
    packed = replace(context, can_unpack=False, loads_libraries=False)
    with ThreadPoolExecutor(usable_processors()) as pool:
        running = {
            pool.submit(_fetch_and_examine, files, repositories, context if key in wanted else packed): key
            for key, files in scan.models.items()
        }
        _report_waiting(running, context.environments.activity, on_waiting)
        models = {key: examined.result() for examined, key in running.items()}
    examine_ensembles(models)
    examination.models = len(wanted)
    examination.findings += _duplicates(scan, only)
    for key in wanted:
        examination.findings += models[key].findings
    examination.migration = migration_items({key: models[key] for key in wanted})
    if not scan.models and not scan.duplicates:
        examination.findings.append(
            warning_finding(
                "no-models",
                "the repositories have no models",
                "each directory in a repository is a model: <repository>/<model>/<version>/model.py",
                ", ".join(examination.repositories),
            )
        )
    examination.findings += examine_memory(sum(models[key].guests for key in wanted), context.options.general.processes)


def _report_waiting(
    running: Mapping[Future[ExaminedModel], str],
    activity: Callable[[], Mapping[str, str]],
    on_waiting: Callable[[Mapping[str, str]], None] | None,
) -> None:
    pending, silence = set(running), _SILENT_SECONDS
    while pending:
        done, pending = wait(pending, timeout=silence, return_when=FIRST_COMPLETED)
        if done:
            silence = _SILENT_SECONDS
            continue
        silence = min(2 * silence, _LONGEST_SILENCE)
        if on_waiting is not None:
            steps = activity()
            on_waiting({name: steps.get(name, "") for name in sorted(running[examined] for examined in pending)})


def _fetch_and_examine(files: ModelFiles, repositories: Repositories, context: ExaminationContext) -> ExaminedModel:
    repositories.fetch(files)
    return examine_model(files, context)


def _wanted(scan: RepositoryScan, only: Sequence[str]) -> list[str]:
    wanted = list(scan.models) if not only else []
    for name in only:
        named: list[ModelFiles] = models_named(name, scan.models)
        if not named and name not in scan.duplicates:
            raise RepositoryError(f"cannot find model '{name}'; the models are: {', '.join(scan.models) or 'none'}")
        wanted += [files.key for files in named]
    return wanted


def _duplicates(scan: RepositoryScan, only: Sequence[str]) -> list[Finding]:
    return [
        error_finding(
            "duplicate",
            "several repositories have this model, and the server loads none of them",
            "keep one, rename one, or serve with --model-namespacing=true",
            ", ".join(str(files.directory) for files in places),
            model=name,
        )
        for name, places in scan.duplicates.items()
        if not only or name in only
    ]
