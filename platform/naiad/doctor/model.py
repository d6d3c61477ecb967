"""Examines one model: its configuration, what would run each of its versions, and its code."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import ModelConfig, freeze, freeze_version_policy, instance_names
from naiad.config.model.validate import validate
from naiad.config.server.options import ServerOptions
from naiad.config.server.prewarm import PARAMETER, modules_to_prewarm
from naiad.doctor.binaries import examine_binaries, examine_own_modules
from naiad.doctor.code import examine_code
from naiad.doctor.findings import Finding, Severity
from naiad.doctor.machine import missing_room
from naiad.engine.loading.introspect import may_auto_complete
from naiad.engine.loading.warmup import read_samples
from naiad.engine.serving.sequence_states import read_states
from naiad.environments.manager import EnvironmentManager
from naiad.environments.progress import ProgressReporter
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.errors import NaiadError, ResolutionError
from naiad.repository.labels import read_labels
from naiad.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.repository.read import config_path, explain_missing_tensors, read_config
from naiad.resolution.decision import Decision, Resolution
from naiad.resolution.resolve import ResolutionSettings, check_stub_supports, resolve

__all__ = ["ExaminationContext", "ExaminedModel", "examine_model"]

_ADVICE = {
    "config": "correct the configuration",
    "versions": "make a directory for each version, named by its number, or change version_policy",
    "backend": "put model.py into the version's directory, name an existing backend, or add --backend-directory",
    "stub": "add the stub and triton_python_backend_utils.py, or neither of them",
    "environment": "name an existing archive or directory, or build one: `naiad env build`, `naiad env pack`",
    "python": "require a supported version of Python, and install it or give the model an environment with it",
    "files": "add the file, or remove it from the configuration",
}
_ORDER = ("backend", "stub", "environment", "python")
"""The decisions of resolution, in order; the first one that is missing is the one that failed."""


@dataclass(slots=True, kw_only=True)
class ExaminationContext:
    """What the examinations of all models share; thread-safe.

    Attributes:
        options: The server's options.
        resolution: The settings of resolution.
        environments: Prepares environments as the server does.
        reporter: Receives the progress.
        can_unpack: Whether archives may be unpacked; if not, checks that need their files are skipped.
    """

    options: ServerOptions
    resolution: ResolutionSettings
    environments: EnvironmentManager
    reporter: ProgressReporter
    can_unpack: bool = True
    _compiled: dict[Path, list[Finding]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def binary_findings(self, environment: ReadyEnvironment) -> list[Finding]:
        """Findings about the compiled modules of an environment; its files are read once for all models."""
        with self._lock:
            if environment.prefix not in self._compiled:
                self._compiled[environment.prefix] = examine_binaries(environment)
            return self._compiled[environment.prefix]


@dataclass(slots=True)
class ExaminedModel:
    """The result of examining one model.

    Attributes:
        files: The model's files.
        message: The configuration, None if it cannot be read.
        versions: The versions that a server would load.
        findings: The findings.
    """

    files: ModelFiles
    message: pb.ModelConfig | None = None
    versions: tuple[int, ...] = ()
    findings: list[Finding] = field(default_factory=list)

    @property
    def guests(self) -> int:
        """The number of processes that would serve the model."""
        return 0 if self.message is None else len(instance_names(freeze(self.message))) * len(self.versions)

    def add_error(self, code: str, error: NaiadError, *, where: str = "", version: int | None = None) -> None:
        """Add a finding for an error that the server's code raised."""
        self.findings.append(
            Finding(
                severity=Severity.ERROR,
                code=code,
                message=error.message,
                advice=_ADVICE[code],
                model=self.files.key,
                version=version,
                where=where,
            )
        )

    def add_findings(self, findings: Iterator[Finding] | list[Finding], version: int) -> None:
        """Add findings about a version."""
        self.findings += [replace(finding, model=self.files.key, version=version) for finding in findings]


def examine_model(files: ModelFiles, context: ExaminationContext) -> ExaminedModel:
    """The findings about a model; its code is read, and not run."""
    examined = ExaminedModel(files)
    path = config_path(files, context.options.models.config_name)
    try:
        strict = not context.options.models.auto_complete
        message = read_config(files, strict=strict, config_name=context.options.models.config_name)
    except NaiadError as error:
        place = re.match(rf"{re.escape(str(path))}(:\d+)?(:\d+)?", error.message)
        examined.add_error("config", error, where=place[0] if place else str(path))
        return examined
    examined.message = message
    try:
        policy = freeze_version_policy(message.version_policy)
        examined.versions = versions_to_load(policy, available_versions(files), files.name)
    except NaiadError as error:
        examined.add_error("versions", error, where=str(files.directory))
        return examined
    if not message.HasField("ensemble_scheduling"):
        for version in examined.versions:
            _examine_version(examined, message, version, context)
    return examined


def _examine_version(
    examined: ExaminedModel, message: pb.ModelConfig, version: int, context: ExaminationContext
) -> None:
    config = freeze(message)
    try:
        files, settings = examined.files, context.resolution
        resolution = resolve(config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri)
    except ResolutionError as error:
        examined.add_error(
            _undecided_subject(error), error, version=version, where=str(examined.files.directory / str(version))
        )
        return
    _examine_configuration(examined, config, resolution, version, context)
    environment = _prepare_environment(examined, resolution, version, context)
    if environment is None:
        return
    try:
        examined.add_findings(_examine_environment(resolution, environment, context), version)
    except NaiadError as error:
        examined.add_error("python", error, version=version, where=str(environment.python))
    finally:
        if environment.lease is not None:
            environment.lease.release()


def _undecided_subject(error: ResolutionError) -> str:
    """The decision that failed; it is the key of the advice."""
    decided = {step.subject for step in error.decided if isinstance(step, Decision)}
    return next((subject for subject in _ORDER if subject not in decided), _ORDER[-1])


def _examine_configuration(
    examined: ExaminedModel, config: ModelConfig, resolution: Resolution, version: int, context: ExaminationContext
) -> None:
    """Add findings about the completed configuration.

    They are skipped for a model that may complete its own configuration, because that requires running its code.
    """
    path = str(config_path(examined.files, context.options.models.config_name))
    try:
        modules_to_prewarm(config.name, config.parameters.get(PARAMETER, ""), context.options.guests.prewarm)
    except NaiadError as error:
        examined.add_error("config", error, where=path, version=version)
    if context.options.models.auto_complete and may_auto_complete(resolution.model_file):
        return
    try:
        validate(config.message, with_io=True)
    except NaiadError as error:
        examined.add_error("config", error, where=path, version=version)
        return
    missing = explain_missing_tensors(examined.files, config, context.options.models.config_name)
    if missing:
        advice = "name them in config.pbtxt, or define auto_complete_config"
        finding = Finding(severity=Severity.WARNING, code="no-tensors", message=missing, advice=advice, where=path)
        examined.add_findings([finding], version)
    for read in (read_labels, read_samples, read_states):
        try:
            read(config, examined.files.directory)
        except NaiadError as error:
            examined.add_error("files", error, where=path, version=version)


def _prepare_environment(
    examined: ExaminedModel, resolution: Resolution, version: int, context: ExaminationContext
) -> ReadyEnvironment | None:
    """The prepared environment; None if that fails, which adds a finding, or if it would need unpacking."""
    archive = _archive(resolution.environment)
    try:
        if archive is not None:
            finding = missing_room(archive, context.options.environments.store, context.reporter)
            if finding is not None:
                examined.add_findings([finding], version)
                return None
        if not context.can_unpack and (archive is not None or isinstance(resolution.environment, EnvironmentSource)):
            return None
        return context.environments.prepare(resolution.environment, python=resolution.python, label=examined.files.key)
    except NaiadError as error:
        code = "python" if resolution.environment is None else "environment"
        examined.add_error(code, error, where=str(resolution.environment or ""), version=version)
        return None


def _archive(source: Path | EnvironmentSource | None) -> Path | None:
    path = source.path if isinstance(source, EnvironmentSource) else source
    return path if path is not None and path.is_file() else None


def _examine_environment(
    resolution: Resolution, environment: ReadyEnvironment, context: ExaminationContext
) -> Iterator[Finding]:
    check_stub_supports(resolution, ".".join(map(str, environment.version)))
    yield from examine_code(resolution, environment)
    yield from examine_own_modules(resolution.model_file.parent, environment)
    if not environment.is_host:  # this process has loaded the binaries of its own interpreter
        yield from context.binary_findings(environment)
