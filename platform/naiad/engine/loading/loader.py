"""Loads one version of a model: it is prepared, which blocks, and started.

The preparation is resolution, environment, labels, samples and states; the start is auto-completion and guests.
Processes are started on the event loop's thread, because the kernel kills a guest when the thread that started it ends
(PR_SET_PDEATHSIG), and the thread of a preparation does end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import NamedTuple

import orjson
from naiad_stub.load_spec import LoadSpec, ModelCode, NativeCode, PythonCode

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.auto_complete import merge_auto_completed
from naiad.config.model.model_config import InstanceKind, InstancePlacement, ModelConfig, freeze, instance_names
from naiad.config.model.parameters import modules_to_prewarm, or_default
from naiad.config.model.scaling import reject_native_scaling, with_count
from naiad.config.model.text import decode_json
from naiad.config.model.validate import validate
from naiad.config.server.guest_user import GuestUser, GuestUserRange
from naiad.core import blocking, clock
from naiad.core.errors import ModelError, ResolutionError
from naiad.core.file_content import find_unfetched
from naiad.core.logs import logged_levels
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.lifecycle.process_placement import (
    COORDINATOR,
    LoadFacts,
    Placement,
    describe_ensemble,
    describe_placement,
    place_ensemble,
    place_instances,
)
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.loading.instance_change import THREAD_VARIABLES, threads_each
from naiad.engine.loading.introspect import may_auto_complete
from naiad.engine.loading.load_advice import load_advice
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.engine.served import version_numbers
from naiad.engine.serving.compile_plan import input_names, state_outputs
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.replicas import ReplicaMaker, ReplicaOrder
from naiad.engine.serving.sequence_states import read_states
from naiad.engine.serving.version import ModelVersion
from naiad.engine.serving.warmup import WarmupSample, read_samples
from naiad.environments.manager import EnvironmentManager
from naiad.environments.ready_environment import ActivatedEnvironment, ReadyEnvironment, inherited_variables
from naiad.guests.completion import complete_in_guest
from naiad.guests.guest_users import GuestUsers
from naiad.guests.launch import SYSTEM, GuestProcesses, LaunchSpec
from naiad.guests.memory.link_memory import LinkMemory
from naiad.guests.prewarm import ForkServerPool, PrewarmedGuests
from naiad.guests.worker import GuestServices
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.read import explain_missing_tensors, explain_repeated_tensors, read_labels
from naiad.models.resolution.decision import Decision, Resolution
from naiad.models.resolution.environment import misspelt_parameters
from naiad.models.resolution.preparation import check_interpreter, prepare_environment
from naiad.models.resolution.resolve import ResolutionSettings, resolve
from naiad.protocol.metadata import with_labels
from naiad.sources.interpreters.distributions import imports_from_working_directory

logger = logging.getLogger("naiad.engine")

# OpenBLAS: the exponent of two of the processor ticks for which an idle thread spins. 20 is about 0.4 ms; the default
# is 30 ms.
_OPENBLAS_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings of loading, made from the server's options by `app`."""

    resolution: ResolutionSettings
    auto_complete: bool = True
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    start_timeout: float = 30.0
    # An activated environment: a warning is logged if a model runs elsewhere without anything saying so.
    activated: ActivatedEnvironment | None = None
    # A model and the debugger (see `naiad_stub.debugging`) under which its guests run, at this process's terminal and
    # without time limits; None if no model is debugged.
    debugged: tuple[str, str] | None = None
    limiter: SharedRateLimiter | None = None
    # Whether imports are done once for all guests of a model, where its configuration does not say.
    prewarm: bool = False
    busy_poll_us: int = 0
    hang_seconds: float = 0.0
    log_rate: int = 0
    guest_env: Sequence[str] | None = None
    # The user of all guests, or users of which each model gets one; None for the server's own.
    guest_user: GuestUser | GuestUserRange | None = None
    gpu_pools: Mapping[str, int] = field(default_factory=dict)
    link_memory: LinkMemory | None = None
    replicas: ReplicaMaker | None = None  # the other processes that may run instances; None if there are none
    is_caching: bool = False
    processes: GuestProcesses = SYSTEM


class _Checked(NamedTuple):
    config: ModelConfig
    labels: Mapping[str, tuple[str, ...]]
    samples: tuple[WarmupSample, ...]
    states: tuple[StateTensor, ...]


class PreparedVersion(NamedTuple):
    """What is known of a version before its first guest is started."""

    files: ModelFiles
    config: ModelConfig
    resolution: Resolution
    environment: ReadyEnvironment
    unfetched: str  # see `Loader._unfetched`
    checked: _Checked | None  # its complete configuration; None if its code has to complete it first
    seconds: float


class PreparedDormant(NamedTuple):
    """What is known of a version that its first request will load."""

    files: ModelFiles
    config: ModelConfig
    resolution: Resolution
    environment: ReadyEnvironment | None  # the environment of processes that are started now; None if none is
    may_complete: bool  # whether a load may change the configuration
    # The labels of its outputs; None if its code has to complete the configuration first.
    labels: Mapping[str, tuple[str, ...]] | None


class Loader:
    """Loads versions of models."""

    def __init__(self, settings: LoadSettings, environments: EnvironmentManager) -> None:
        self._settings = settings
        self.link_memory = settings.link_memory
        self.processes = settings.processes
        self.limiter = settings.limiter
        self._environments = environments
        self._fork_servers = ForkServerPool()
        self._users = GuestUsers(settings.guest_user)
        # The last resolution of each version, by the model's key and the version.
        self.resolutions: dict[tuple[str, int], Resolution] = {}
        # The decisions before the failure of versions that could not be resolved at their last load.
        self.steps: dict[tuple[str, int], Sequence[Decision]] = {}
        self.launching = asyncio.Event()
        self._noticed: set[str] = set()
        self._has_warned_of_activated = False

    def prepare(self, files: ModelFiles, message: pb.ModelConfig, version: int) -> PreparedVersion:
        """Find what runs a version, a directory of the model, and prepare its environment.

        Blocks, for as long as that takes to build.
        """
        started = clock.monotonic()
        config = freeze(message)
        resolution = self._resolve(config, files, version)
        environment = self._environment(resolution, files)
        unfetched = self._unfetched(files, resolution)
        if resolution.is_shared:
            message = pb.ModelConfig()
            message.CopyFrom(config.message)
            message.runtime = resolution.runtime
            config = freeze(message)
        checked = None if self._may_complete(resolution) else _checked(message, files)
        seconds = clock.monotonic() - started
        return PreparedVersion(files, config, resolution, environment, unfetched, checked, seconds)

    async def start(
        self,
        prepared: PreparedVersion,
        services: GuestServices,
        *,
        is_on_demand: bool = False,
        on_step: Callable[[str], None] = lambda step: None,  # noqa: ARG005 - a callback
    ) -> ModelVersion:
        """Start the guests of a version; *on_step* is called with what is done next, in a few words."""
        config, resolution = prepared.config, prepared.resolution
        for notice in resolution.notices:
            if notice not in self._noticed:  # a notice about a backend's file comes up for each of its models
                self._noticed.add(notice)
                logger.info("%s", notice)
        self._warn_of_activated(config.name, resolution, prepared.environment)
        prewarmed = self._prewarmed(config, resolution)
        try:
            facts = self._load_facts(config, resolution, is_forked=prewarmed is not None, is_on_demand=is_on_demand)
            return await self._start(prepared, services, prewarmed, facts, on_step)
        except BaseException as error:
            if prewarmed is not None:
                prewarmed.release()
            if not isinstance(error, ModelError):
                raise
            if advice := load_advice(error.message, resolution) or prepared.unfetched:
                first, separator, rest = error.message.partition("\n")
                raise ModelError(
                    f"{first}; {advice}{separator}{rest}", code=error.code, traceback_text=error.traceback_text
                ) from error
            raise

    def _warn_of_activated(self, model: str, resolution: Resolution, environment: ReadyEnvironment) -> None:
        """Log once that the activated environment does not reach a model whose environment nothing has chosen."""
        activated = self._settings.activated
        has_chosen = resolution.environment is not None or resolution.library is not None
        if activated is None or has_chosen or self._has_warned_of_activated:
            return
        if warning := activated.warning_about(model, environment.python):
            self._has_warned_of_activated = True
            logger.warning("%s", warning)

    def _unfetched(self, files: ModelFiles, resolution: Resolution) -> str:
        """A sentence about the files of a model that were not fetched, such as its weights; empty for none. Blocks.

        The model may not need them, so that they are logged, and explain the error if it fails.
        """
        shared = (resolution.backend_dir,) if resolution.backend_dir is not None else ()
        found = [each for folder in (files.directory, *shared) for each in find_unfetched(folder)]
        if not found:
            return ""
        path, what = found[0]
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        sentence = f"'{path}' is {what}{others}"
        logger.warning("'%s': %s", files.key, sentence)
        return sentence

    def prepare_dormant(self, files: ModelFiles, message: pb.ModelConfig, version: int) -> PreparedDormant:
        """Find what will run a version that is loaded on demand, without preparing more than `describe` needs. Blocks.

        Only a model that declares no inputs or no outputs, and whose code may complete them, is asked: by a process
        that completes the configuration and exits. The fork server of a prewarmed model is started.
        """
        config = freeze(message)
        resolution = self._resolve(config, files, version)
        may_complete = self._may_complete(resolution)
        is_incomplete = may_complete and not (message.input and message.output)
        has_processes = is_incomplete or self._modules(config, resolution)
        environment = self._environment(resolution, files) if has_processes else None
        labels = None if is_incomplete else _checked_labels(message, files, is_known=not may_complete)
        return PreparedDormant(files, config, resolution, environment, may_complete, labels)

    async def describe(self, prepared: PreparedDormant) -> tuple[pb.ModelConfig, Mapping[str, tuple[str, ...]], bool]:
        """What is known of a version that is loaded on demand, without loading it.

        Returns:
            Its configuration, the labels of its outputs, and whether a load cannot change the configuration.
        """
        files, config, resolution, environment, may_complete, labels = prepared
        message, is_known = config.message, labels is None or not may_complete
        if environment is not None:
            self._fork_servers.lingers = True
            prewarmed = self._prewarmed(config, resolution)
            try:
                if labels is None:
                    message = await self.complete(message, resolution, environment, prewarmed)
                if prewarmed is not None:
                    config = freeze(message)
                    for instance in instance_names(config)[:1]:
                        prewarmed.start_early(self._spec(config, resolution, environment, instance))
            finally:
                if prewarmed is not None:
                    prewarmed.release()
        if labels is None:
            labels = await blocking.run(_checked_labels, message, files, is_known=True)
        return message, labels, is_known

    def _may_complete(self, resolution: Resolution) -> bool:
        """Whether the model's code may change the configuration; reads its file.

        A native backend may do so in any case: --disable-auto-complete-config only tells it that it is not asked to.
        """
        if resolution.library is not None:
            return resolution.library.may_complete
        return self._settings.auto_complete and may_auto_complete(resolution.model_file)

    def release_prewarmed(self) -> None:
        """End the fork servers that are kept for models on demand which are not loaded."""
        self._fork_servers.lingers = False
        self._fork_servers.close_unused()

    def activity(self) -> Mapping[str, str]:
        return self._environments.activity()

    def _modules(self, config: ModelConfig, resolution: Resolution) -> tuple[str, ...]:
        if resolution.library is not None:  # a native backend imports no modules
            return ()
        return modules_to_prewarm(config.settings.prewarmed_modules, by_default=self._settings.prewarm)

    def _prewarmed(self, config: ModelConfig, resolution: Resolution) -> PrewarmedGuests | None:
        modules = self._modules(config, resolution)
        return self._fork_servers.guests_with(modules) if modules else None

    async def complete(
        self,
        message: pb.ModelConfig,
        resolution: Resolution,
        environment: ReadyEnvironment,
        prewarmed: PrewarmedGuests | None = None,
    ) -> pb.ModelConfig:
        """The configuration as the model's code completes it, in a process that exits, which *prewarmed* forks."""
        place = InstancePlacement(message.name, InstanceKind.CPU)
        spec = self._spec(freeze(message), resolution, environment, place, completes_config=True)
        self.launching.set()
        completed = await complete_in_guest(replace(spec, prewarm=prewarmed))
        source = f"auto-completed configuration of model '{message.name}'"
        return merge_auto_completed(message, decode_json(completed, source))

    async def _start(
        self,
        prepared: PreparedVersion,
        services: GuestServices,
        prewarmed: PrewarmedGuests | None,
        facts: LoadFacts,
        on_step: Callable[[str], None],
    ) -> ModelVersion:
        files, config, resolution, environment, _, checked, _ = prepared
        if checked is None:
            on_step("completing its configuration")
            message = await self.complete(config.message, resolution, environment, prewarmed)
            checked = await blocking.run(_checked, message, files)
        config, labels, samples, states = checked
        policy = config.settings.scaling
        if policy is not None:
            if resolution.library is not None:
                raise reject_native_scaling(config.name)
            config = freeze(with_count(config.message, policy.least))
        instances, lanes = instance_names(config), []
        if len(instances) > 1 and self._is_model_shared(config, resolution):
            lanes = [instance.name for instance in instances]
            instances = instances[:1]
        specs = [self._spec(config, resolution, environment, instance, lanes=lanes) for instance in instances]
        specs = [spec if spec.at_terminal else replace(spec, prewarm=prewarmed) for spec in specs]
        settings, version = self._settings, resolution.version
        processes = 1 if settings.replicas is None else settings.replicas.processes
        place = partial(place_instances, facts=facts, processes=processes)
        placement = place(config)
        if settings.replicas is not None:
            logger.info("'%s': %s", files.key, describe_placement(config, placement))
        shares = shares_of(specs, placement)
        own = shares.pop(COORDINATOR)
        if own and settings.link_memory is not None:
            inputs = settings.link_memory.add_inputs(config.name)
            own = [replace(spec, link_memory=settings.link_memory, inputs=inputs) for spec in own]
        number, replicas = next(version_numbers), None
        if shares:
            assert settings.replicas is not None
            as_bytes = config.message.SerializeToString()
            order = ReplicaOrder(number, version, files.namespace, as_bytes, (), settings.restart, samples)
            replicas = settings.replicas.make(order, config.name, shares)
        loaded = ModelVersion(
            config,
            version,
            own,
            settings.restart,
            services,
            samples,
            settings.limiter,
            states,
            number=number,
            replicas=replicas,
        )
        loaded.place = place
        loaded.hold(spec.lease for share in shares.values() for spec in share if spec.lease is not None)
        loaded.metadata, loaded.resolution = with_labels(loaded.metadata, labels), resolution
        loaded.log.advise = partial(load_advice, resolution=resolution)
        self.launching.set()
        on_step("starting its processes")
        await loaded.start()
        return loaded

    async def start_ensemble(self, files: ModelFiles, made: EnsembleVersion) -> None:
        """Have the processes that have instances of all models of an ensemble execute its requests, too."""
        maker = self._settings.replicas
        if maker is None:
            return
        placement = place_ensemble(made.config, made.processes_of_members(), is_cached=self._settings.is_caching)
        logger.info("'%s': %s", files.key, describe_ensemble(placement))
        others = [process for process in placement.processes if process != COORDINATOR]
        if others:
            order = ReplicaOrder(
                made.number,
                made.version,
                files.namespace,
                made.config.message.SerializeToString(),
                (),
                self._settings.restart,
                (),
                steps=made.graph.steps,
            )
            await made.start_replicas(maker.make(order, made.config.name, dict.fromkeys(others, ())))

    def _load_facts(
        self, config: ModelConfig, resolution: Resolution, *, is_forked: bool, is_on_demand: bool
    ) -> LoadFacts:
        debugged = self._settings.debugged
        return LoadFacts(
            is_native=resolution.library is not None,
            is_forked=is_forked,
            is_on_demand=is_on_demand,
            is_debugged=debugged is not None and debugged[0] == config.name,
            is_cached=self._settings.is_caching,
            is_rate_limited=self._settings.limiter is not None,
        )

    def _is_model_shared(self, config: ModelConfig, resolution: Resolution) -> bool:
        if resolution.library is None or config.message.HasField("sequence_batching"):
            return False
        return bool(config.settings.is_native_shared)

    def _environment(self, resolution: Resolution, files: ModelFiles) -> ReadyEnvironment:
        environment = prepare_environment(resolution, self._environments, files.key)
        check_interpreter(resolution, environment.version)
        return environment

    def _resolve(self, config: ModelConfig, files: ModelFiles, version: int) -> Resolution:
        settings = self._settings.resolution
        self.steps.pop((files.key, version), None)
        try:
            resolution = resolve(
                config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri
            )
        except ResolutionError as error:
            self.resolutions.pop((files.key, version), None)
            self.steps[files.key, version] = [step for step in error.decided if isinstance(step, Decision)]
            raise
        self.resolutions[files.key, version] = resolution
        for step in resolution.steps:
            logger.debug("%s: %s", config.name, step)
        for misspelt in misspelt_parameters(config):
            logger.warning("%s", misspelt)
        return resolution

    def _spec(
        self,
        config: ModelConfig,
        resolution: Resolution,
        environment: ReadyEnvironment,
        instance: InstancePlacement,
        *,
        completes_config: bool = False,
        lanes: Sequence[str] = (),
    ) -> LaunchSpec:
        name = instance.name
        policy = config.settings.scaling
        # Where the instances follow the load, thread counts are for the largest number: with others, instances that are
        # added could not be forked from the same process.
        instances = (len(instance_names(config)) or 1) if policy is None else policy.most
        limit = or_default(config.settings.hang_seconds, self._settings.hang_seconds)
        user = self._users.user_of(str(resolution.model_dir))
        inherited = inherited_variables(os.environ, self._settings.guest_env)
        own = _of_user(inherited, user)
        environ = _with_threads(environment.environ(own), instances)
        code: ModelCode
        if resolution.library is None:
            code = PythonCode(
                str(resolution.model_file),
                str(resolution.utils_dir),
                is_shared=resolution.is_shared,
                environment=_origin_of(resolution, environment),
                settings=resolution.settings,
                imports_from_cwd=environment.is_host and imports_from_working_directory(),
            )
        else:
            code = NativeCode(
                file=str(resolution.library.path),
                backend=resolution.backend,
                backend_config=orjson.dumps({"cmdline": dict(resolution.backend_config)}).decode(),
                # The guest's own variables are for its interpreter. The backend, and programs that it starts, get the
                # server's, as in the reference: a Python among them must not find this server's packages.
                environ=_with_threads(own, instances),
                log_levels=logged_levels(),
                auto_completes=completes_config and self._settings.auto_complete,
                may_set_config=resolution.library.may_complete,
                lanes=lanes,
            )
        debugged = self._settings.debugged
        is_debugged = not completes_config and debugged is not None and debugged[0] == config.name
        if debugged is not None and is_debugged:
            environ["NAIAD_STUB_DEBUG"] = debugged[1]
        return LaunchSpec(
            name=name,
            python=environment.python,
            stub=resolution.stub,
            library=resolution.library_dir,
            environ=environ,
            load=LoadSpec(
                code,
                completes_config=completes_config,
                model_name=config.name,
                model_version=resolution.version,
                model_dir=str(resolution.model_dir),
                version_dir=str(resolution.version_dir),
                model_config=config.json_text,
                instance_name=name,
                instance_kind=instance.kind.value,
                device_id=instance.device_id,
                inputs=input_names(config),
                outputs=[tensor.name for tensor in config.outputs],
                states=state_outputs(config),
                is_decoupled=config.decoupled,
                busy_poll_us=self._settings.busy_poll_us,
                gpu_pools=self._settings.gpu_pools,
                writes_stacks=bool(limit),
                memory_limit=config.settings.memory_limit.size,
            ),
            start_timeout=inf if is_debugged else self._settings.start_timeout,
            at_terminal=is_debugged,
            hang_seconds=0.0 if is_debugged else limit,
            lease=environment.lease,
            restore=None
            if environment.lease is None
            else partial(prepare_environment, resolution, self._environments, resolution.model),
            busy_poll_us=self._settings.busy_poll_us,
            log_rate=self._settings.log_rate,
            memory_limit=config.settings.memory_limit,
            user=user,
            device=instance.device_id,
            processes=self.processes,
        )


def _checked(message: pb.ModelConfig, files: ModelFiles) -> _Checked:
    """A complete configuration, frozen and rendered, with the files that it names: labels, samples, states. Blocks."""
    validate(message, with_io=True)
    config = freeze(message)
    _ = config.json_text  # rendered here, off the event loop: instances and clients need it
    if wrong := explain_missing_tensors(files, config) or explain_repeated_tensors(config):
        logger.warning("'%s': %s", files.key, wrong)
    folder = files.directory
    return _Checked(config, read_labels(config, folder), read_samples(config, folder), read_states(config, folder))


def _checked_labels(message: pb.ModelConfig, files: ModelFiles, *, is_known: bool) -> Mapping[str, tuple[str, ...]]:
    if is_known:
        validate(message, with_io=True)
    return read_labels(freeze(message), files.directory)


def shares_of(specs: Sequence[LaunchSpec], placement: Placement) -> dict[int, list[LaunchSpec]]:
    """How to start the guests of each process that has any, and of the coordinator.

    Where instances share a guest, they are in one process, which has fewer guests than instances.
    """
    shares: dict[int, list[LaunchSpec]] = {COORDINATOR: []}
    for spec, process in zip(specs, placement.processes):  # noqa: B905 - see above
        shares.setdefault(process, []).append(spec)
    return shares


def _origin_of(resolution: Resolution, environment: ReadyEnvironment) -> str:
    origin = resolution.environment_origin or resolution.python_origin
    if environment.is_host:
        return f"the server's own interpreter{f'; {origin}' if origin else ''}"
    return f"chosen by {origin}"


def _of_user(environ: dict[str, str], user: GuestUser | None) -> dict[str, str]:
    """*environ* for another user, whose processes must not look for their files in the home of the server's user."""
    if user is None:
        return environ
    kept = {name: text for name, text in environ.items() if not name.startswith("XDG_")}
    names = {"USER": user.name, "LOGNAME": user.name} if user.name else {}
    return {**kept, "HOME": user.home, **names}


def _with_threads(environ: dict[str, str], instances: int) -> dict[str, str]:
    """*environ* with thread counts that share the cores among a model's *instances*, unless the user has set them.

    By default the libraries of every instance would start one thread per core and compete for the cores. OpenBLAS
    (numpy's) also spins for 30 ms after each use, and once at import, on a core that other instances need.
    """
    return {**dict.fromkeys(THREAD_VARIABLES, threads_each(instances)), **_OPENBLAS_SPIN, **environ}
