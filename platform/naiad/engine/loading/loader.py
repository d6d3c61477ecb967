"""Loads one version of a model: configuration, resolution, environment, auto-completion, guests.

Blocking work (reading, unpacking, probing) runs in threads. Processes are started on the event loop's thread, because
the kernel kills a guest when the thread that started it ends (PR_SET_PDEATHSIG), and threads of a pool do end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Protocol

import orjson
from packaging.specifiers import SpecifierSet

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.auto_complete import merge_auto_completed
from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import InstanceKind, ModelConfig, freeze, instance_names
from naiad.config.model.render import to_json
from naiad.config.model.validate import validate
from naiad.config.server.prewarm import PARAMETER, PrewarmOption, modules_to_prewarm
from naiad.engine.loading.introspect import may_auto_complete
from naiad.engine.loading.warmup import read_samples
from naiad.engine.serving.compile_plan import input_names, state_outputs
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.sequence_states import read_states
from naiad.engine.serving.version import ModelVersion
from naiad.lifecycle.restart import RestartPolicy
from naiad.protocol.metadata import with_labels
from naiad.repository.labels import read_labels
from naiad.repository.layout import ModelFiles
from naiad.repository.read import explain_missing_tensors
from naiad.resolution.decision import Resolution
from naiad.resolution.resolve import ResolutionSettings, check_stub_supports, resolve
from naiad.workers.completion import complete_in_guest
from naiad.workers.launch import EnvironmentLease, LaunchSpec
from naiad.workers.prewarm import ForkServerPool, PrewarmedGuests
from naiad.workers.worker import GuestServices

logger = logging.getLogger("naiad.engine")

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# OpenBLAS: the exponent of two of the processor ticks for which an idle thread spins. 20 is about 0.4 ms; the default
# is 30 ms.
_OPENBLAS_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20"}


class GuestEnvironment(Protocol):
    """What a guest needs of its environment: an interpreter and the variables it starts with."""

    @property
    def python(self) -> Path:
        """The interpreter."""

    @property
    def version(self) -> tuple[int, int, int]:
        """Its version."""

    @property
    def lease(self) -> EnvironmentLease | None:
        """The reader lock that protects it from eviction; None if it needs none."""

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The guest's variables, derived from the server's."""


class Environments(Protocol):
    """Provides environments for guests."""

    def prepare(
        self, source: Path | EnvironmentSource | None, *, python: SpecifierSet | None = None, label: str = ""
    ) -> GuestEnvironment:
        """The environment of *source*, unpacked if necessary; blocks, and may be called on any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings of loading, made from the server's options by `app`.

    Attributes:
        resolution: Where backends and artifacts are.
        auto_complete: Whether models may complete their configuration.
        restart: How often guests are restarted.
        start_timeout: Seconds that a starting guest may go without progress.
        debugged: A model and the debugger (see `naiad_stub.debugging`) under which its guests run, at this process's
            terminal and without time limits; None if no model is debugged.
        limiter: The rate limiter; None if it is disabled.
        prewarm: Which modules are imported once for all guests, for models whose configuration does not say.
        busy_poll_us: See `LaunchSpec.busy_poll_us`.
    """

    resolution: ResolutionSettings
    auto_complete: bool = True
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    start_timeout: float = 30.0
    debugged: tuple[str, str] | None = None
    limiter: SharedRateLimiter | None = None
    prewarm: PrewarmOption = field(default_factory=PrewarmOption)
    busy_poll_us: int = 0


class Loader:
    """Loads versions of models.

    Attributes:
        resolutions: The last resolution of each version, by the model's key and the version.
        launching: Set as soon as the first guest is being started.
    """

    def __init__(self, settings: LoadSettings, environments: Environments) -> None:
        self._settings = settings
        self._environments = environments
        self._fork_servers = ForkServerPool()
        self.resolutions: dict[tuple[str, int], Resolution] = {}
        self.launching = asyncio.Event()
        self._noticed: set[str] = set()

    async def load(
        self, files: ModelFiles, message: pb.ModelConfig, version: int, services: GuestServices
    ) -> ModelVersion:
        """Load one version.

        Args:
            files: The model's files.
            message: Its configuration as read.
            version: The version, a directory of the model.
            services: What the model can use of the server.

        Raises:
            NaiadError: If it cannot be loaded.
        """
        config = freeze(message)
        resolution, environment = await asyncio.to_thread(self._find, config, files, version)
        self.resolutions[files.key, version] = resolution
        for notice in resolution.notices:
            if notice not in self._noticed:  # a notice about a backend's file comes up for each of its models
                self._noticed.add(notice)
                logger.info("%s", notice)
        modules = modules_to_prewarm(config.name, config.parameters.get(PARAMETER, ""), self._settings.prewarm)
        prewarmed = self._fork_servers.guests_with(modules) if modules else None
        try:
            return await self._start(files, config, resolution, environment, services, prewarmed)
        except BaseException:
            if prewarmed is not None:
                prewarmed.release()
            raise

    async def _start(
        self,
        files: ModelFiles,
        config: ModelConfig,
        resolution: Resolution,
        environment: GuestEnvironment,
        services: GuestServices,
        prewarmed: PrewarmedGuests | None,
    ) -> ModelVersion:
        message = pb.ModelConfig()
        message.CopyFrom(config.message)
        if resolution.is_shared:
            message.runtime = resolution.runtime
        if self._settings.auto_complete and await asyncio.to_thread(may_auto_complete, resolution.model_file):
            spec = self._spec(freeze(message), resolution, environment, message.name, InstanceKind.CPU, "complete")
            spec = replace(spec, prewarm=prewarmed)
            self.launching.set()
            completed = await complete_in_guest(spec)
            message = merge_auto_completed(message, orjson.loads(completed))
        validate(message, with_io=True)
        config = freeze(message)
        if wanting := explain_missing_tensors(files, config):
            logger.warning("'%s': %s", files.key, wanting)
        labels = await asyncio.to_thread(read_labels, config, files.directory)  # raises if a label file is missing
        samples = await asyncio.to_thread(read_samples, config, files.directory)
        states = await asyncio.to_thread(read_states, config, files.directory)
        specs = [
            self._spec(config, resolution, environment, name, kind, "serve") for name, kind in instance_names(config)
        ]
        specs = [spec if spec.at_terminal else replace(spec, prewarm=prewarmed) for spec in specs]
        settings, version = self._settings, resolution.version
        loaded = ModelVersion(config, version, specs, settings.restart, services, samples, settings.limiter, states)
        loaded.metadata, loaded.resolution = with_labels(loaded.metadata, labels), resolution
        self.launching.set()
        await loaded.start()
        return loaded

    def _find(self, config: ModelConfig, files: ModelFiles, version: int) -> tuple[Resolution, GuestEnvironment]:
        settings = self._settings.resolution
        resolution = resolve(config, model_dir=files.directory, version=version, settings=settings, model_uri=files.uri)
        for step in resolution.steps:
            logger.debug("%s: %s", config.name, step)
        environment = self._environments.prepare(resolution.environment, python=resolution.python, label=config.name)
        check_stub_supports(resolution, ".".join(map(str, environment.version)))
        return resolution, environment

    def _spec(
        self,
        config: ModelConfig,
        resolution: Resolution,
        environment: GuestEnvironment,
        name: str,
        kind: InstanceKind,
        mode: str,
    ) -> LaunchSpec:
        instances = sum(group.count for group in config.instance_groups) or 1
        model_config = orjson.dumps(to_json(config.message)).decode()
        load = {
            "mode": mode,
            "model_name": config.name,
            "instance_name": name,
            "model_file": str(resolution.model_file),
            "model_dir": str(resolution.model_dir),
            "version_dir": str(resolution.version_dir),
            "utils_dir": str(resolution.utils_dir),
            "shared": "1" if resolution.is_shared else "0",
            "decoupled": "1" if config.decoupled else "0",
            "inputs": "\0".join(input_names(config)),
            "outputs": "\0".join(tensor.name for tensor in config.outputs),
            "states": "\0".join(state_outputs(config)),
            "model_config": model_config,
            "busy_poll_us": str(self._settings.busy_poll_us),
            # PB src/stub_launcher.cc: the dictionary `initialize` gets.
            "args.model_config": model_config,
            "args.model_instance_kind": kind.value,
            "args.model_instance_name": name,
            "args.model_instance_device_id": "0",
            "args.model_repository": str(resolution.model_dir),
            "args.model_version": str(resolution.version),
            "args.model_name": config.name,
        }
        environ = _with_threads(environment.environ(os.environ), instances)
        debugged = self._settings.debugged
        is_debugged = mode == "serve" and debugged is not None and debugged[0] == config.name
        if debugged is not None and is_debugged:
            environ["NAIAD_STUB_DEBUG"] = debugged[1]
        return LaunchSpec(
            name=name,
            python=environment.python,
            stub=resolution.stub,
            library=resolution.library_dir,
            environ=environ,
            load=load,
            start_timeout=inf if is_debugged else self._settings.start_timeout,
            at_terminal=is_debugged,
            lease=environment.lease,
            busy_poll_us=self._settings.busy_poll_us,
        )


def _with_threads(environ: dict[str, str], instances: int) -> dict[str, str]:
    """*environ* with thread counts that share the cores among a model's *instances*, unless the user has set them.

    By default the libraries of every instance would start one thread per core and compete for the cores. OpenBLAS
    (numpy's) also spins for 30 ms after each use, and once at import, on a core that other instances need.
    """
    threads = str(max(1, (os.cpu_count() or 1) // instances))
    return {**dict.fromkeys(_THREAD_VARIABLES, threads), **_OPENBLAS_SPIN, **environ}
