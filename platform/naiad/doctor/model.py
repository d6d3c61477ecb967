"""One model: its configuration, what would run each version of it, and its code."""

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
from naiad.doctor.machine import wanting_room
from naiad.engine.loading.introspect import may_auto_complete
from naiad.engine.loading.warmup import read_samples
from naiad.engine.serving.sequence_states import read_states
from naiad.environments.manager import EnvironmentManager
from naiad.environments.progress import Reporter
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.errors import NaiadError, ResolutionError
from naiad.repository.labels import read_labels
from naiad.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.repository.read import config_path, lack_of_tensors, read_config
from naiad.resolution.decision import Resolution, ResolutionSettings, Step
from naiad.resolution.resolve import check_stub_supports, resolve

__all__ = ["Examined", "Ward", "examine_model"]

_ADVICE = {
    "config": "correct the configuration",
    "versions": "make a directory for each version, named by its number, or change version_policy",
    "backend": "put model.py into the version's directory, name an existing backend, or add --backend-directory",
    "stub": "bring both of the stub and triton_python_backend_utils.py, or neither",
    "environment": "name an archive or directory that is there, or build it: `naiad env build`, `naiad env pack`",
    "python": "ask for a Python that models run under here, and install it or give the model an environment of it",
    "files": "bring the file, or take it out of the configuration",
}
_ORDER = ("backend", "stub", "environment", "python")
"""What resolution decides, in order: what comes after its last decision is what failed."""


@dataclass(slots=True, kw_only=True)
class Ward:
    """What examinations of models share; for use by any number of threads.

    Attributes:
        options: The server's options.
        resolution: How models are resolved.
        environments: Prepares environments as the server does.
        reporter: Whoever shows progress.
        unpacks: Whether archives are unpacked; what cannot be seen without that is left out otherwise.
    """

    options: ServerOptions
    resolution: ResolutionSettings
    environments: EnvironmentManager
    reporter: Reporter
    unpacks: bool = True
    _compiled: dict[Path, list[Finding]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compiled_in(self, environment: ReadyEnvironment) -> list[Finding]:
        """What compiled modules of an environment ask for in vain; its files are read once for all models."""
        with self._lock:
            if environment.prefix not in self._compiled:
                self._compiled[environment.prefix] = examine_binaries(environment)
            return self._compiled[environment.prefix]


@dataclass(slots=True)
class Examined:
    """One model after its examination.

    Attributes:
        files: Where it lies.
        message: Its configuration, None if it cannot be read.
        versions: What would be loaded of it.
        findings: What was found.
    """

    files: ModelFiles
    message: pb.ModelConfig | None = None
    versions: tuple[int, ...] = ()
    findings: list[Finding] = field(default_factory=list)

    @property
    def guests(self) -> int:
        """How many processes serve it."""
        return 0 if self.message is None else len(instance_names(freeze(self.message))) * len(self.versions)

    def add(self, code: str, error: NaiadError, *, where: str = "", version: int | None = None) -> None:
        """Note an error of the server's own code."""
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

    def take(self, findings: Iterator[Finding] | list[Finding], version: int) -> None:
        """Note what was found in a version."""
        self.findings += [replace(finding, model=self.files.key, version=version) for finding in findings]


def examine_model(files: ModelFiles, ward: Ward) -> Examined:
    """Examine a model as the server would load it, without starting anything of it."""
    examined = Examined(files)
    path = config_path(files, ward.options.models.config_name)
    try:
        strict = not ward.options.models.auto_complete
        message = read_config(files, strict=strict, config_name=ward.options.models.config_name)
    except NaiadError as error:
        place = re.match(rf"{re.escape(str(path))}(:\d+)?(:\d+)?", error.message)
        examined.add("config", error, where=place[0] if place else str(path))
        return examined
    examined.message = message
    try:
        policy = freeze_version_policy(message.version_policy)
        examined.versions = versions_to_load(policy, available_versions(files), files.name)
    except NaiadError as error:
        examined.add("versions", error, where=str(files.directory))
        return examined
    if not message.HasField("ensemble_scheduling"):
        for version in examined.versions:
            _examine_version(examined, message, version, ward)
    return examined


def _examine_version(examined: Examined, message: pb.ModelConfig, version: int, ward: Ward) -> None:
    config = freeze(message)
    try:
        files, settings = examined.files, ward.resolution
        resolution = resolve(config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri)
    except ResolutionError as error:
        examined.add(_failed(error), error, version=version, where=str(examined.files.directory / str(version)))
        return
    _examine_configuration(examined, config, resolution, version, ward)
    environment = _prepared(examined, resolution, version, ward)
    if environment is None:
        return
    try:
        examined.take(_examine_environment(resolution, environment, ward), version)
    except NaiadError as error:
        examined.add("python", error, version=version, where=str(environment.python))
    finally:
        if environment.lease is not None:
            environment.lease.release()


def _failed(error: ResolutionError) -> str:
    """What could not be decided."""
    decided = {step.subject for step in error.decided if isinstance(step, Step)}
    return next((subject for subject in _ORDER if subject not in decided), _ORDER[-1])


def _examine_configuration(
    examined: Examined, config: ModelConfig, resolution: Resolution, version: int, ward: Ward
) -> None:
    """What loading checks once the model has completed its configuration, where it completes nothing."""
    path = str(config_path(examined.files, ward.options.models.config_name))
    try:
        modules_to_prewarm(config.name, config.parameters.get(PARAMETER, ""), ward.options.guests.prewarm)
    except NaiadError as error:
        examined.add("config", error, where=path, version=version)
    if ward.options.models.auto_complete and may_auto_complete(resolution.model_file):
        return
    try:
        validate(config.message, with_io=True)
    except NaiadError as error:
        examined.add("config", error, where=path, version=version)
        return
    wanting = lack_of_tensors(examined.files, config, ward.options.models.config_name)
    if wanting:
        advice = "name them in config.pbtxt, or define auto_complete_config"
        finding = Finding(severity=Severity.WARNING, code="no-tensors", message=wanting, advice=advice, where=path)
        examined.take([finding], version)
    for read in (read_labels, read_samples, read_states):
        try:
            read(config, examined.files.directory)
        except NaiadError as error:
            examined.add("files", error, where=path, version=version)


def _prepared(examined: Examined, resolution: Resolution, version: int, ward: Ward) -> ReadyEnvironment | None:
    """The environment, ready; None if it cannot be, which is then noted, or shall not."""
    archive = _archive(resolution.environment)
    try:
        if archive is not None:
            finding = wanting_room(archive, ward.options.environments.store, ward.reporter)
            if finding is not None:
                examined.take([finding], version)
                return None
        if not ward.unpacks and (archive is not None or isinstance(resolution.environment, EnvironmentSource)):
            return None
        return ward.environments.prepare(resolution.environment, python=resolution.python, label=examined.files.key)
    except NaiadError as error:
        code = "python" if resolution.environment is None else "environment"
        examined.add(code, error, where=str(resolution.environment or ""), version=version)
        return None


def _archive(source: Path | EnvironmentSource | None) -> Path | None:
    path = source.path if isinstance(source, EnvironmentSource) else source
    return path if path is not None and path.is_file() else None


def _examine_environment(resolution: Resolution, environment: ReadyEnvironment, ward: Ward) -> Iterator[Finding]:
    check_stub_supports(resolution, ".".join(map(str, environment.version)))
    yield from examine_code(resolution, environment)
    yield from examine_own_modules(resolution.model_file.parent, environment)
    if not environment.is_host:  # what the server itself runs with has been loaded already
        yield from ward.compiled_in(environment)
