"""Examines one model: its configuration, what would run each of its versions, and its code."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.declared_environment import is_declaration
from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import ModelConfig, freeze, freeze_version_policy, instance_names
from naiad.config.model.parameters import modules_to_prewarm, or_default, place_of_parameter, without_own_parameters
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
from naiad.environments.conda_unpack_check import explain_moved_scripts
from naiad.environments.manager import EnvironmentManager
from naiad.environments.progress import ProgressReporter
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.models.repository.layout import ModelFiles, available_versions, mkdir_command, versions_to_load
from naiad.models.repository.read import (
    config_path,
    explain_missing_tensors,
    explain_repeated_tensors,
    gpu_placement,
    read_config,
    read_labels,
)
from naiad.models.resolution.decision import Decision, Resolution
from naiad.models.resolution.environment import misspelt_parameters
from naiad.models.resolution.preparation import check_interpreter, prepare_environment
from naiad.models.resolution.resolve import ResolutionSettings, resolve
from naiad_operations.doctor.binaries import examine_binaries, examine_own_modules
from naiad_operations.doctor.code import examine_code
from naiad_operations.doctor.findings import Finding, Severity, error_finding, note_finding, warning_finding
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
            error_finding(code, error.message, advice or _ADVICE[code], where, model=self.files.key, version=version)
        )


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
            _VersionExaminer(examined, message, version, context).examine()
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
            yield warning_finding(
                "placeholder",
                f"'{name}' is a placeholder of a template, which the model gets as it is",
                "fill in the template",
                f"{path}:{number}",
                model=files.key,
            )


@dataclass(slots=True)
class _VersionExaminer:
    """Adds the findings about one version of a model."""

    examined: ExaminedModel
    message: pb.ModelConfig
    version: int
    context: ExaminationContext

    @property
    def path(self) -> Path:
        return config_path(self.examined.files, self.context.options.models.config_name)

    def _add_error(self, code: str, error: NaiadError, where: object) -> None:
        self.examined.add_error(code, error, where=str(where), version=self.version)

    def _add_warning(self, code: str, message: str, advice: str, where: object) -> None:
        self._add([warning_finding(code, message, advice, str(where))])

    def _add(self, findings: Iterable[Finding]) -> None:
        self.examined.findings += [
            replace(finding, model=self.examined.files.key, version=self.version) for finding in findings
        ]

    def examine(self) -> None:
        config = self._freeze()
        scaling = config.settings.scaling
        most = len(instance_names(config)) if scaling is None else scaling.most
        self.examined.guests_each = 0 if self._is_on_demand(config) else most
        model_dir, settings = self.examined.files.directory, self.context.resolution
        try:
            resolution = resolve(
                config, model_dir=model_dir, version=self.version, settings=settings, model_uri=self.examined.files.uri
            )
        except ResolutionError as error:
            self._add_error(_undecided_subject(error), error, model_dir / str(self.version))
            return
        self.examined.resolution = resolution
        for misspelt in misspelt_parameters(config):
            advice = "correct the name, or rename the parameter if it is the model's own"
            self._add_warning("parameter", misspelt, advice, self.path)
        for path, what in find_unfetched(model_dir):
            advice = "fetch it before the server starts; whether the model needs it shows only when it runs"
            self._add_warning("unfetched", f"it is {what}", advice, path)
        self._examine_configuration(config, resolution)
        environment = self._prepare_environment(resolution)
        if environment is None:
            return
        try:
            self._add(_examine_environment(resolution, environment, self.context, config))
            has_errors = any(
                each.version == self.version and each.severity is Severity.ERROR for each in self.examined.findings
            )
            if resolution.library is not None and self.context.loads_libraries and not has_errors:
                self._examine_initialization(resolution, environment)
        except NaiadError as error:
            self._add_error("python", error, environment.python)
        finally:
            if environment.lease is not None:
                environment.lease.release()

    def _freeze(self) -> ModelConfig:
        """The frozen configuration; an invalid parameter of the server is a finding, and left out with the others."""
        try:
            return freeze(self.message)
        except ParameterError as error:
            self._add_error("config", error, place_of_parameter(self.path, error.parameter))
            return freeze(without_own_parameters(self.message))

    def _is_on_demand(self, config: ModelConfig) -> bool:
        mode = self.context.options.models.control_mode
        return or_default(config.settings.is_on_demand, mode is ModelControlMode.DEMAND)

    def _examine_configuration(self, config: ModelConfig, resolution: Resolution) -> None:
        """Add findings about the configuration as it was read.

        A model that may complete it has another one once its code has run.
        """
        if config.settings.scaling is not None and resolution.library is not None:
            error = reject_native_scaling(config.name)
            self._add_error("config", error, place_of_parameter(self.path, error.parameter))
        self._add(examine_parameters(config, resolution, str(self.path)))
        may_complete = _may_complete(resolution, self.context)
        is_incomplete = not (config.message.input and config.message.output)
        if self._is_on_demand(config) and is_incomplete and may_complete:
            note = note_finding(
                "asked-at-start",
                "it is loaded on demand and its code completes the configuration, so each start of the server runs "
                "that code",
                "write its inputs and outputs into config.pbtxt",
                str(self.path),
            )
            self._add([note])
        if not may_complete:
            self._examine_completed(config)

    def _examine_initialization(self, resolution: Resolution, environment: ReadyEnvironment) -> None:
        """Add findings of a native library about the model, and about the configuration that it has completed."""
        options = self.context.options
        settings = LoadSettings(
            resolution=self.context.resolution,
            auto_complete=options.models.auto_complete,
            start_timeout=options.backends.python.stub_timeout_seconds,
            log_rate=options.guests.log_rate,
            guest_env=options.guests.environ,
            guest_user=options.guests.user,
        )
        loader = Loader(settings, self.context.environments)
        completed = initialize_model(self.message, resolution, environment, loader)
        if isinstance(completed, Finding):
            self._add([completed])
        elif _may_complete(resolution, self.context):
            self._examine_completed(freeze(completed))

    def _examine_completed(self, config: ModelConfig) -> None:
        try:
            validate(config.message, with_io=True)
        except NaiadError as error:
            self._add_error("config", error, self.path)
            return
        missing = explain_missing_tensors(self.examined.files, config, self.context.options.models.config_name)
        if missing:
            advice = "name them in config.pbtxt, or define auto_complete_config"
            self._add_warning("no-tensors", missing, advice, self.path)
        if repeated := explain_repeated_tensors(config):
            self._add_warning("repeated-tensors", repeated, "give each its own name", self.path)
        for read in (read_labels, read_samples, read_states):
            try:
                read(config, self.examined.files.directory)
            except NaiadError as error:
                self._add_error("files", error, self.path)

    def _prepare_environment(self, resolution: Resolution) -> ReadyEnvironment | None:
        """The prepared environment; None if that fails, which adds a finding, or if it would need unpacking."""
        context, named = self.context, resolution.environment
        archive = _archive(named)
        where = str(named or "")
        try:
            if archive is not None:
                stored = context.options.environments
                finding = missing_room(archive, stored.store, context.reporter, evicts=bool(stored.store_max_bytes))
                if finding is not None:
                    self._add([finding])
                    return None
            is_remote = isinstance(named, EnvironmentSource) and not named.is_interpreter
            is_declared = isinstance(named, Path) and is_declaration(named)
            if not context.can_unpack and (archive is not None or is_remote or is_declared):
                return None
            environment = prepare_environment(resolution, context.environments, self.examined.files.key)
            is_folder = environment.digest is None and not environment.is_host
            if moved := explain_moved_scripts(environment.prefix) if is_folder else "":
                message, _, advice = moved.partition("; ")
                self._add_warning("scripts", message, advice, where)
            return environment
        except EnvironmentBusyError as error:
            advice = "examine the model again when that has ended; most of its checks need the environment"
            self._add_warning("environment-busy", error.message.partition("; ")[0], advice, where)
        except NaiadError as error:
            code = "python" if named is None else "environment"
            # What to do depends on the cause, so that most of these errors end with it.
            message, _, advice = error.message.partition("; ") if code == "environment" else (error.message, "", "")
            self._add([error_finding(code, message, advice or _ADVICE[code], where)])
        return None


def _undecided_subject(error: ResolutionError) -> str:
    decided = {step.subject for step in error.decided if isinstance(step, Decision)}
    return next((subject for subject in _ORDER if subject not in decided), _ORDER[-1])


def _may_complete(resolution: Resolution, context: ExaminationContext) -> bool:
    """Whether the model's code may change the configuration; a native backend also without being asked to."""
    if resolution.library is not None:
        return resolution.library.may_complete
    return context.options.models.auto_complete and may_auto_complete(resolution.model_file)


def _archive(source: Path | EnvironmentSource | None) -> Path | None:
    if isinstance(source, EnvironmentSource) and source.is_interpreter:
        return None
    path = source.path if isinstance(source, EnvironmentSource) else source
    return path if path is not None and path.is_file() and not is_declaration(path) else None


def _examine_environment(
    resolution: Resolution, environment: ReadyEnvironment, context: ExaminationContext, config: ModelConfig
) -> Iterator[Finding]:
    check_interpreter(resolution, environment.version)
    for problem in environment.activation.problems:
        message, _, advice = problem.rpartition(": ")
        yield warning_finding("activation", message, advice, str(resolution.environment or environment.prefix))
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
            Severity(problem["severity"]), "model-files", problem["message"], problem["advice"], problem["where"]
        )


_FALSE = frozenset({"", "0", "false", "off", "no"})
# By backend and parameter: why it has no effect, and what to do.
_WITHOUT_EFFECT = {
    "pytorch": {
        "ENABLE_WEIGHT_SHARING": (
            "each instance is a process with weights of its own",
            "use one instance with dynamic_batching where memory is short",
        )
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
            yield note_finding("without-effect", f"the parameter {name} has no effect: {why}", advice, where)
