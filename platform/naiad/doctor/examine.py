"""The examination of everything that a server with some options would load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from naiad.config.server.options import ServerOptions
from naiad.doctor.ensembles import examine_ensembles
from naiad.doctor.findings import Finding, Report, Severity
from naiad.doctor.machine import examine_memory, examine_ports, examine_store, examine_temporary
from naiad.doctor.model import Examined, Ward, examine_model
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.progress import Reporter
from naiad.errors import RepositoryError
from naiad.repository.layout import ModelFiles, RepositoryScan, models_named
from naiad.repository.repositories import Repositories, open_repositories
from naiad.resolution.settings import resolution_settings

__all__ = ["examine"]


def examine(options: ServerOptions, reporter: Reporter, *, only: Sequence[str] = (), unpack: bool = True) -> Report:
    """Examine what a server with these options would load, where it would keep it, and where it would listen.

    Args:
        options: The server's options.
        reporter: Whoever shows progress.
        only: Names of models; all of them unless some are given.
        unpack: Whether archives are unpacked into the store, which a server would do, too.

    Raises:
        NaiadError: If nothing can be examined: a repository cannot be read, or the guest not be laid out.
    """
    repositories = open_repositories(options.models.repositories, is_namespaced=options.models.is_namespaced)
    try:
        report = Report(tuple(map(str, repositories.given)))
        report.findings += examine_store(options.environments.store)
        if report.findings:
            return report  # nothing of a model can be tried without it
        _examine_models(report, repositories, _ward(options, reporter, unpack=unpack), only)
    finally:
        repositories.close()
    report.findings += [*examine_temporary(), *examine_ports(options)]
    return report


def _ward(options: ServerOptions, reporter: Reporter, *, unpack: bool) -> Ward:
    environments = EnvironmentManager(options.environments.store, reporter=reporter, policy=store_policy(options))
    resolution = resolution_settings(options)
    return Ward(options=options, resolution=resolution, environments=environments, reporter=reporter, unpacks=unpack)


def _examine_models(report: Report, repositories: Repositories, ward: Ward, only: Sequence[str]) -> None:
    found = repositories.scan()
    wanted = _wanted(found, only)
    # Of those that are not wanted it matters what they are, as ensembles need them.
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # most of the time interpreters are at work
        examined = pool.map(lambda files: _examined(files, repositories, ward), found.models.values())
        models = dict(zip(found.models, examined, strict=True))
    examine_ensembles(models)
    report.models = len(wanted)
    report.findings += _duplicates(found, only)
    for key in wanted:
        report.findings += models[key].findings
    if not found.models and not found.duplicates:
        report.findings.append(
            Finding(
                severity=Severity.WARNING,
                code="no-models",
                message="there is no model",
                advice="each directory in a repository is a model: <repository>/<model>/<version>/model.py",
                where=", ".join(report.repositories),
            )
        )
    report.findings += examine_memory(sum(models[key].guests for key in wanted))


def _examined(files: ModelFiles, repositories: Repositories, ward: Ward) -> Examined:
    repositories.fetch(files)
    return examine_model(files, ward)


def _wanted(found: RepositoryScan, only: Sequence[str]) -> list[str]:
    wanted = list(found.models) if not only else []
    for name in only:
        named: list[ModelFiles] = models_named(name, found.models)
        if not named and name not in found.duplicates:
            raise RepositoryError(f"there is no model '{name}'; there are {', '.join(found.models) or 'none'}")
        wanted += [files.key for files in named]
    return wanted


def _duplicates(found: RepositoryScan, only: Sequence[str]) -> list[Finding]:
    return [
        Finding(
            severity=Severity.ERROR,
            code="duplicate",
            message="it is in two or more repositories, and none of them is loaded",
            advice="keep one, rename one, or serve with --model-namespacing=true",
            model=name,
            where=", ".join(str(files.directory) for files in places),
        )
        for name, places in found.duplicates.items()
        if not only or name in only
    ]
