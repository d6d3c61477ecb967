"""Examines one model: its configuration, what would run each of its versions, and its code."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.declared_environment import is_declaration
from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import ModelConfig, freeze, freeze_version_policy, instance_names
from naiad.config.model.parameters import or_default, place_of_parameter, without_own_parameters
from naiad.config.model.prewarm import modules_to_prewarm
from naiad.config.model.scaling import reject_native_scaling
from naiad.config.model.text import find_placeholders
from naiad.config.model.validate import validate
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.core.errors import EnvironmentBusyError, NaiadError, ParameterError, ResolutionError
from naiad.core.file_content import find_unfetched
from naiad.engine.loading.introspect import may_auto_complete
from naiad.engine.loading.loader import Loader, LoadSettings
from naiad.engine.serving.sequence_states import read_states
from naiad.engine.serving.warmup import read_samples
from naiad.environments.manager import EnvironmentManager
from naiad.environments.moved_folders import explain_moved_scripts
from naiad.environments.progress import ProgressReporter
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.models.repository.labels import read_labels
from naiad.models.repository.layout import ModelFiles, available_versions, mkdir_command, versions_to_load
from naiad.models.repository.read import (
    config_path,
    explain_missing_tensors,
    explain_repeated_tensors,
    gpu_placement,
    read_config,
)
from naiad.models.resolution.decision import Decision, Resolution
from naiad.models.resolution.environment import misspelt_parameters
from naiad.models.resolution.preparation import check_interpreter, prepare_environment
from naiad.models.resolution.resolve import ResolutionSettings, resolve
from naiad_operations.doctor.binaries import examine_binaries, examine_own_modules
from naiad_operations.doctor.code import examine_code
from naiad_operations.doctor.findings import Finding, Severity
from naiad_operations.doctor.in_environment import run_in_environment
from naiad_operations.doctor.machine import missing_room
from naiad_operations.doctor.native_library import examine_native_library, initialize_model

_ADVICE = {
    "config": "correct the configuration",
    "no-gpu": "serve it where there is a GPU, and examine it for that with --assume-gpus=1; to try it here on the CPU, "
    "start with --gpu-fallback=cpu",
    "versions": "make a directory for each version, named by its number, or change version_policy",
    "backend": "put model.py into the version's directory, name an existing backend, or add --backend-directory",
    "stub": "add the stub and triton_python_backend_utils.py, or neither of them",
    "environment": "name an existing archive or directory, or build one: `naiad env build`, `naiad env pack`",
    "python": "require a supported version of Python, and install it or give the model an environment with it",
    "files": "add the file, or remove it from the configuration",
}
# The decisions of resolution, in order; the first one that is missing is the one that failed.
_ORDER = ("backend", "stub", "environment", "python")


@dataclass(slots=True, kw_only=True)
class ExaminationContext:
    """What the examinations of all models share; thread-safe."""

    options: ServerOptions
    resolution: ResolutionSettings
    environments: EnvironmentManager
    reporter: ProgressReporter
    can_unpack: bool = True
    loads_libraries: bool = True  # whether libraries of native backends are loaded
    assumed_gpus: int | None = None
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
    """The result of examining one model."""

    files: ModelFiles
    message: pb.ModelConfig | None = None
    versions: tuple[int, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    # What runs the last of these versions; None if nothing does, and for ensembles.
    resolution: Resolution | None = None
    # The number of processes that would serve a version at the same time, at most; 0 for a model that is loaded on
    # demand, since the server limits how many of these are loaded, and for ensembles.
    guests_each: int = 0

    @property
    def guests(self) -> int:
        return self.guests_each * len(self.versions)

    def add_error(
        self, code: str, error: NaiadError, *, where: str = "", version: int | None = None, advice: str = ""
    ) -> None:
        self.findings.append(
            Finding(
                severity=Severity.ERROR,
                code=code,
                message=error.message,
                advice=advice or _ADVICE[code],
                model=self.files.key,
                version=version,
                where=where,
            )
        )

    def add_warning(self, code: str, message: str, advice: str, *, where: str, version: int) -> None:
        finding = Finding(severity=Severity.WARNING, code=code, message=message, advice=advice, where=where)
        self.add_findings([finding], version)

    def has_errors_of(self, version: int) -> bool:
        return any(each.version == version and each.severity is Severity.ERROR for each in self.findings)

    def add_findings(self, findings: Iterator[Finding] | list[Finding], version: int) -> None:
        self.findings += [replace(finding, model=self.files.key, version=version) for finding in findings]


def examine_model(files: ModelFiles, context: ExaminationContext) -> ExaminedModel:
    """The findings about a model; its code in Python is read, and not run."""
    examined = ExaminedModel(files)
    path = config_path(files, context.options.models.config_name)
    try:
        strict = not context.options.models.auto_complete
        message = _read_config(examined, context, strict=strict)
    except NaiadError as error:
        place = re.match(rf"{re.escape(str(path))}(:\d+)?(:\d+)?", error.message)
        examined.add_error("config", error, where=place[0] if place else str(path))
        return examined
    examined.message = message
    examined.findings += _placeholders(files, path)
    try:
        policy = freeze_version_policy(message.version_policy)
        examined.versions = versions_to_load(policy, available_versions(files), files.name)
    except NaiadError as error:
        advice = _ADVICE["versions"]
        if message.HasField("ensemble_scheduling") and not available_versions(files):
            # git keeps no empty folders, and that of an ensemble has no files.
            advice = f"run `{mkdir_command(files.directory)}`"
        examined.add_error("versions", error, where=str(files.directory), advice=advice)
        return examined
    if not message.HasField("ensemble_scheduling"):
        for version in examined.versions:
            _examine_version(examined, message, version, context)
    return examined


def _read_config(examined: ExaminedModel, context: ExaminationContext, *, strict: bool) -> pb.ModelConfig:
    """The configuration of a model; one that needs a GPU is read also without, which is a finding."""
    options, files = context.options.models, examined.files
    assumed = context.assumed_gpus
    gpus = gpu_placement(falls_back=options.gpu_fallback == "cpu")
    if assumed is not None:
        gpus = replace(gpus, count=lambda: assumed)
    try:
        return read_config(files, strict=strict, config_name=options.config_name, gpus=gpus)
    except NaiadError as error:
        if gpus.falls_back or gpus.count():
            raise
        # If it is invalid on the CPU, too, that error is the one to correct.
        on_cpu = replace(gpus, falls_back=True)
        message = read_config(files, strict=strict, config_name=options.config_name, gpus=on_cpu)
        where = str(config_path(files, options.config_name))
        examined.add_error("no-gpu", error, where=where)
        return message


def _placeholders(files: ModelFiles, path: Path) -> Iterator[Finding]:
    """Findings about texts of the configuration that a template has left; others make it invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for number, line in enumerate(text.splitlines(), 1):
        for name in find_placeholders(line):
            yield Finding(
                severity=Severity.WARNING,
                code="placeholder",
                message=f"'{name}' is a placeholder of a template, which the model gets as it is",
                advice="fill in the template",
                model=files.key,
                where=f"{path}:{number}",
            )


def _examine_version(
    examined: ExaminedModel, message: pb.ModelConfig, version: int, context: ExaminationContext
) -> None:
    config = _freeze(examined, message, version, context)
    most = len(instance_names(config)) if config.settings.scaling is None else config.settings.scaling.most
    examined.guests_each = 0 if _is_on_demand(config, context) else most
    try:
        files, settings = examined.files, context.resolution
        resolution = resolve(config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri)
    except ResolutionError as error:
        examined.add_error(
            _undecided_subject(error), error, version=version, where=str(examined.files.directory / str(version))
        )
        return
    examined.resolution = resolution
    for misspelt in misspelt_parameters(config):
        where = str(config_path(examined.files, context.options.models.config_name))
        advice = "correct the name, or rename the parameter if it is the model's own"
        examined.add_warning("parameter", misspelt, advice, where=where, version=version)
    for path, what in find_unfetched(files.directory):
        advice = "fetch it before the server starts; whether the model needs it shows only when it runs"
        examined.add_warning("unfetched", f"it is {what}", advice, where=str(path), version=version)
    _examine_configuration(examined, config, resolution, version, context)
    environment = _prepare_environment(examined, resolution, version, context)
    if environment is None:
        return
    try:
        examined.add_findings(_examine_environment(resolution, environment, context, config), version)
        if resolution.library is not None and context.loads_libraries and not examined.has_errors_of(version):
            _examine_initialization(examined, message, resolution, environment, version, context)
    except NaiadError as error:
        examined.add_error("python", error, version=version, where=str(environment.python))
    finally:
        if environment.lease is not None:
            environment.lease.release()


def _freeze(examined: ExaminedModel, message: pb.ModelConfig, version: int, context: ExaminationContext) -> ModelConfig:
    """The frozen configuration; an invalid parameter of the server is a finding, and it is left out with the others."""
    try:
        return freeze(message)
    except ParameterError as error:
        where = place_of_parameter(config_path(examined.files, context.options.models.config_name), error.parameter)
        examined.add_error("config", error, where=where, version=version)
        return freeze(without_own_parameters(message))


def _is_on_demand(config: ModelConfig, context: ExaminationContext) -> bool:
    return or_default(config.settings.is_on_demand, context.options.models.control_mode is ModelControlMode.DEMAND)


def _undecided_subject(error: ResolutionError) -> str:
    decided = {step.subject for step in error.decided if isinstance(step, Decision)}
    return next((subject for subject in _ORDER if subject not in decided), _ORDER[-1])


def _examine_configuration(
    examined: ExaminedModel, config: ModelConfig, resolution: Resolution, version: int, context: ExaminationContext
) -> None:
    """Add findings about the configuration as it was read.

    A model that may complete it has another one once its code has run.
    """
    path = str(config_path(examined.files, context.options.models.config_name))
    if config.settings.scaling is not None and resolution.library is not None:
        error = reject_native_scaling(config.name)
        examined.add_error("config", error, where=place_of_parameter(Path(path), error.parameter), version=version)
    examined.add_findings(examine_parameters(config, resolution, path), version)
    if _is_on_demand(config, context):
        examined.add_findings(_examine_demand(config, resolution, path, context), version)
    if not _may_complete(resolution, context):
        _examine_completed(examined, config, version, context)


def _examine_initialization(
    examined: ExaminedModel,
    message: pb.ModelConfig,
    resolution: Resolution,
    environment: ReadyEnvironment,
    version: int,
    context: ExaminationContext,
) -> None:
    """Add findings of a native library about the model, and about the configuration that it has completed."""
    options = context.options
    settings = LoadSettings(
        resolution=context.resolution,
        auto_complete=options.models.auto_complete,
        start_timeout=options.backends.python.stub_timeout_seconds,
        log_rate=options.guests.log_rate,
        guest_env=options.guests.environ,
        guest_user=options.guests.user,
    )
    completed = initialize_model(message, resolution, environment, Loader(settings, context.environments))
    if isinstance(completed, Finding):
        examined.add_findings([completed], version)
    elif _may_complete(resolution, context):
        _examine_completed(examined, freeze(completed), version, context)


def _examine_completed(examined: ExaminedModel, config: ModelConfig, version: int, context: ExaminationContext) -> None:
    path = str(config_path(examined.files, context.options.models.config_name))
    try:
        validate(config.message, with_io=True)
    except NaiadError as error:
        examined.add_error("config", error, where=path, version=version)
        return
    missing = explain_missing_tensors(examined.files, config, context.options.models.config_name)
    if missing:
        advice = "name them in config.pbtxt, or define auto_complete_config"
        examined.add_warning("no-tensors", missing, advice, where=path, version=version)
    repeated = explain_repeated_tensors(config)
    if repeated:
        examined.add_warning("repeated-tensors", repeated, "give each its own name", where=path, version=version)
    for read in (read_labels, read_samples, read_states):
        try:
            read(config, examined.files.directory)
        except NaiadError as error:
            examined.add_error("files", error, where=path, version=version)


def _examine_demand(
    config: ModelConfig, resolution: Resolution, path: str, context: ExaminationContext
) -> Iterator[Finding]:
    """What makes loading a model on demand dearer than it need be."""
    is_incomplete = not (config.message.input and config.message.output)
    if is_incomplete and _may_complete(resolution, context):
        yield Finding(
            severity=Severity.NOTE,
            code="asked-at-start",
            message="it is loaded on demand and its code completes the configuration, so each start of the server runs "
            "that code",
            advice="write its inputs and outputs into config.pbtxt",
            where=path,
        )


def _may_complete(resolution: Resolution, context: ExaminationContext) -> bool:
    """Whether the model's code may change the configuration; a native backend also without being asked to."""
    if resolution.library is not None:
        return resolution.library.may_complete
    return context.options.models.auto_complete and may_auto_complete(resolution.model_file)


def _prepare_environment(
    examined: ExaminedModel, resolution: Resolution, version: int, context: ExaminationContext
) -> ReadyEnvironment | None:
    """The prepared environment; None if that fails, which adds a finding, or if it would need unpacking."""
    archive = _archive(resolution.environment)
    where = str(resolution.environment or "")
    try:
        if archive is not None:
            stored = context.options.environments
            finding = missing_room(archive, stored.store, context.reporter, evicts=bool(stored.store_max_bytes))
            if finding is not None:
                examined.add_findings([finding], version)
                return None
        named = resolution.environment
        is_remote = isinstance(named, EnvironmentSource) and not named.is_interpreter
        is_declared = isinstance(named, Path) and is_declaration(named)
        if not context.can_unpack and (archive is not None or is_remote or is_declared):
            return None
        environment = prepare_environment(resolution, context.environments, examined.files.key)
        is_folder = environment.digest is None and not environment.is_host
        if moved := explain_moved_scripts(environment.prefix) if is_folder else "":
            message, _, advice = moved.partition("; ")
            examined.add_warning("scripts", message, advice, where=where, version=version)
        return environment
    except EnvironmentBusyError as error:
        advice = "examine the model again when that has ended; most of its checks need the environment"
        message = error.message.partition("; ")[0]
        examined.add_warning("environment-busy", message, advice, where=where, version=version)
        return None
    except NaiadError as error:
        code = "python" if resolution.environment is None else "environment"
        # What to do depends on the cause, so that most of these errors end with it.
        message, _, advice = error.message.partition("; ") if code == "environment" else (error.message, "", "")
        finding = Finding(
            severity=Severity.ERROR,
            code=code,
            message=message,
            advice=advice or _ADVICE[code],
            where=where,
        )
        examined.add_findings([finding], version)
        return None


def _archive(source: Path | EnvironmentSource | None) -> Path | None:
    if isinstance(source, EnvironmentSource) and source.is_interpreter:
        return None
    path = source.path if isinstance(source, EnvironmentSource) else source
    return path if path is not None and path.is_file() and not is_declaration(path) else None


def _examine_environment(
    resolution: Resolution,
    environment: ReadyEnvironment,
    context: ExaminationContext,
    config: ModelConfig,
) -> Iterator[Finding]:
    check_interpreter(resolution, environment.version)
    for problem in environment.activation.problems:
        message, _, advice = problem.rpartition(": ")
        yield Finding(
            severity=Severity.WARNING,
            code="activation",
            message=message,
            advice=advice,
            where=str(resolution.environment or environment.prefix),
        )
    if resolution.library is not None:
        yield from examine_native_library(resolution.library, environment)
        return
    is_final = not resolution.is_shared and not _may_complete(resolution, context)
    yield from examine_code(resolution, environment, _prewarmed(config, context), config if is_final else None)
    yield from examine_by_backend(resolution, environment, config.parameters)
    yield from examine_own_modules(resolution.model_file.parent, environment)
    if not environment.is_host:  # this process has loaded the binaries of its own interpreter
        yield from context.binary_findings(environment)


def _prewarmed(config: ModelConfig, context: ExaminationContext) -> tuple[str, ...]:
    return modules_to_prewarm(config.settings.prewarmed_modules, by_default=context.options.guests.prewarm)


_MODULE = "examine_model.py"


def examine_by_backend(
    resolution: Resolution, environment: ReadyEnvironment, parameters: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings of the model's shared backend, which knows files that the server does not read; none if it has no rules.

    Its module `examine_model.py` has `examine(directory, parameters)`, which reads the version's directory and returns
    problems. It runs with the model's interpreter, as the backend itself does. Nothing of the model is imported.
    """
    folder = resolution.model_file.parent
    if not resolution.is_shared or not (folder / _MODULE).is_file():
        return
    request = {"folder": str(folder), "directory": str(resolution.version_dir), "parameters": dict(parameters)}
    for problem in run_in_environment(environment, "_backend_script.py", request)["problems"]:
        yield Finding(
            severity=Severity(problem["severity"]),
            code="model-files",
            message=problem["message"],
            advice=problem["advice"],
            where=problem["where"],
        )


_FALSE = frozenset({"", "0", "false", "off", "no"})
# By backend and parameter: why it has no effect, and what to do.
_WITHOUT_EFFECT = {
    "pytorch": {
        "ENABLE_WEIGHT_SHARING": (
            "each instance is a process with weights of its own",
            "use one instance with dynamic_batching where memory is short",
        ),
    },
    "fil": dict.fromkeys(
        ("layout", "chunk_size", "transfer_threshold", "use_experimental_optimizations", "algo", "threads_per_tree"),
        ("Treelite computes on processors", "remove it"),
    ),
}


def examine_parameters(config: ModelConfig, resolution: Resolution, where: str) -> Iterator[Finding]:
    """A note for each parameter of Triton's backends for saved models that has no effect in those of naiad.

    The backends warn of them at load; a person who plans a migration wants to know before.
    """
    if not resolution.is_shared:
        return
    for name, (why, advice) in _WITHOUT_EFFECT.get(config.backend, {}).items():
        if config.parameters.get(name, "").strip().lower() not in _FALSE:
            yield Finding(
                severity=Severity.NOTE,
                code="without-effect",
                message=f"the parameter {name} has no effect: {why}",
                advice=advice,
                where=where,
            )
