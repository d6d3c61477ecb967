"""Examines everything that a server with some options would use: models, environments, store, ports, memory.

The doctor adds few rules. It calls the functions that the server calls (configuration, resolution,
environments, ensembles) and turns their errors into findings, so that it cannot disagree with the server. Models are
examined in parallel, because most of the time is spent in interpreters of their environments.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from naiad.config.server.options import ServerOptions
from naiad.doctor.ensembles import examine_ensembles
from naiad.doctor.findings import Examination, Finding, Severity
from naiad.doctor.machine import examine_memory, examine_ports, examine_store, examine_temporary
from naiad.doctor.model import ExaminationContext, ExaminedModel, examine_model
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.progress import ProgressReporter
from naiad.errors import RepositoryError
from naiad.repository.layout import ModelFiles, RepositoryScan, models_named
from naiad.repository.repositories import Repositories, open_repositories
from naiad.resolution.resolve import resolution_settings

__all__ = ["examine"]


def examine(
    options: ServerOptions, reporter: ProgressReporter, *, only: Sequence[str] = (), can_unpack: bool = True
) -> Examination:
    """The findings about a server with these options: its models, its store, its ports and its memory.

    Args:
        options: The server's options.
        reporter: Receives the progress.
        only: Names of models; empty for all models.
        can_unpack: Whether archives may be unpacked into the store, as a server would do.

    Raises:
        NaiadError: If nothing can be examined: a repository cannot be read, or the guest's files cannot be written.
    """
    repositories = open_repositories(options.models.repositories, is_namespaced=options.models.is_namespaced)
    try:
        examination = Examination(tuple(map(str, repositories.locations)))
        examination.findings += examine_store(options.environments.store)
        if examination.findings:
            return examination  # without a store, no environment can be prepared
        _examine_models(examination, repositories, _context(options, reporter, can_unpack=can_unpack), only)
    finally:
        repositories.close()
    examination.findings += [*examine_temporary(), *examine_ports(options)]
    return examination


def _context(options: ServerOptions, reporter: ProgressReporter, *, can_unpack: bool) -> ExaminationContext:
    environments = EnvironmentManager(options.environments.store, reporter=reporter, policy=store_policy(options))
    resolution = resolution_settings(options)
    return ExaminationContext(
        options=options, resolution=resolution, environments=environments, reporter=reporter, can_unpack=can_unpack
    )


def _examine_models(
    examination: Examination, repositories: Repositories, context: ExaminationContext, only: Sequence[str]
) -> None:
    scan = repositories.scan()
    wanted = _wanted(scan, only)
    # All models are examined, also those that are not wanted: a wanted ensemble may contain them.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        examined = pool.map(lambda files: _fetch_and_examine(files, repositories, context), scan.models.values())
        models = dict(zip(scan.models, examined, strict=True))
    examine_ensembles(models)
    examination.models = len(wanted)
    examination.findings += _duplicates(scan, only)
    for key in wanted:
        examination.findings += models[key].findings
    if not scan.models and not scan.duplicates:
        examination.findings.append(
            Finding(
                severity=Severity.WARNING,
                code="no-models",
                message="the repositories have no models",
                advice="each directory in a repository is a model: <repository>/<model>/<version>/model.py",
                where=", ".join(examination.repositories),
            )
        )
    examination.findings += examine_memory(sum(models[key].guests for key in wanted))


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
        Finding(
            severity=Severity.ERROR,
            code="duplicate",
            message="several repositories have this model, and the server loads none of them",
            advice="keep one, rename one, or serve with --model-namespacing=true",
            model=name,
            where=", ".join(str(files.directory) for files in places),
        )
        for name, places in scan.duplicates.items()
        if not only or name in only
    ]
