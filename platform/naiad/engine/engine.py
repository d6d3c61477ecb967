"""The engine: what frontends ask, answered from the registry; loading and unloading of models.

Everything but the coroutines answers at once, on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import naiad
from naiad.config.model import freeze_version_policy
from naiad.engine.loading import Loader
from naiad.engine.model_metrics import ModelMetrics
from naiad.engine.readiness import are_ready
from naiad.engine.registry import LATEST, Registry, VersionRecord
from naiad.engine.services import ModelServices
from naiad.engine.source import ModelSource, find_source, not_found
from naiad.engine.version import ModelVersion
from naiad.errors import (
    Code,
    ConfigError,
    InvalidRequestError,
    ModelError,
    NaiadError,
    NotReadyError,
    RepositoryError,
)
from naiad.lifecycle.states import UNLOADED
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.metadata import IndexEntry, ModelMetadata, ModelState, ModelStatistics, ServerMetadata
from naiad.repository.layout import ModelFiles, available_versions, scan, versions_to_load

logger = logging.getLogger("naiad.engine")

DUPLICATE = "model appears in two or more repositories"
_TIDY_SECONDS = 2.0
_KEY_BITS = 40
_KEY_MASK = (1 << _KEY_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine takes from the server's options.

    Attributes:
        server_id: The server's name.
        repositories: Model repositories in order.
        is_explicit: Whether models are loaded and unloaded on request only.
        startup_models: With that, the models to load at the start; `("*",)` is all.
        strict_config: Whether a configuration must be complete (--disable-auto-complete-config).
        strict_readiness: Whether the server is ready only if all its models are.
        config_name: Preferred configuration under `configs/`.
        load_threads: How many models load at once.
        load_retries: How often loading a version is tried again.
        exit_timeout: Seconds that requests in flight and guests have when the server stops.
    """

    server_id: str = "triton"
    repositories: tuple[Path, ...] = ()
    is_explicit: bool = False
    startup_models: tuple[str, ...] = ()
    strict_config: bool = False
    strict_readiness: bool = True
    config_name: str = ""
    load_threads: int = 4
    load_retries: int = 0
    exit_timeout: float = 30.0


class Engine:
    """See `naiad.engine.door.EngineDoor`, which this implements.

    Attributes:
        services: What models may want of the server.
        metrics: The models' own metrics.
    """

    def __init__(self, settings: EngineSettings, loader: Loader) -> None:
        self._settings = settings
        self._loader = loader
        self._registry = Registry()
        self.services = ModelServices(self._registry)
        self.metrics = ModelMetrics(self.services)
        self._slots = asyncio.Semaphore(settings.load_threads)
        self._locks: dict[str, asyncio.Lock] = {}
        self._state = "starting"
        self._tidy = asyncio.get_running_loop().create_task(self._tidy_forever())
        self._unloads: set[asyncio.Task[None]] = set()
        self._sources: dict[int, ModelSource] = {}  # by number of version: what it was loaded from stays till its end

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> list[NaiadError]:
        """Load the models of the repositories, or those asked for; return what failed.

        Raises:
            RepositoryError: If a repository cannot be read.
        """
        found = await asyncio.to_thread(scan, self._settings.repositories)
        for name in found.duplicates:
            self._registry.record(name).reason = DUPLICATE
        wanted = dict(found.models)
        failures: list[NaiadError] = [RepositoryError(f"{name}: {DUPLICATE}") for name in found.duplicates]
        if self._settings.is_explicit:
            wanted, missing = self._startup(wanted)
            failures = missing
        outcomes = await asyncio.gather(
            *(self._load_model(ModelSource(files=files)) for files in wanted.values()), return_exceptions=True
        )
        for name, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, NaiadError):
                failures.append(outcome)
            elif isinstance(outcome, BaseException):
                logger.error("loading '%s' failed", name, exc_info=outcome)
                failures.append(NaiadError(f"loading '{name}' failed: {outcome}"))
        self._state = "ready"
        return failures

    async def stop(self) -> None:
        """Take no more requests, let those in flight finish, end all guests."""
        self._state = "exiting"
        self._tidy.cancel()
        versions = list(self._registry.ready_versions())
        await asyncio.gather(*(version.stop(self._settings.exit_timeout) for version in versions))
        await asyncio.gather(*self._unloads, return_exceptions=True)

    def _startup(self, models: dict[str, ModelFiles]) -> tuple[dict[str, ModelFiles], list[NaiadError]]:
        names = self._settings.startup_models
        if names == ("*",):
            return models, []
        missing: list[NaiadError] = []
        for name in names:
            if name not in models:
                problem = not_found(name, "no model repository has it")
                logger.error("%s", problem.message)
                missing.append(problem)
        return {name: models[name] for name in names if name in models}, missing

    # -- questions ----------------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        """Name, version and extensions."""
        return ServerMetadata(name=self._settings.server_id, version=naiad.__version__)

    @property
    def is_started(self) -> bool:
        """Whether the models of the start are loaded."""
        return self._state != "starting"

    def is_live(self) -> bool:
        """Whether the server has started and not begun to exit."""
        self._refuse_exiting()
        return True

    def is_ready(self) -> bool:
        """Whether the server takes requests, and (strict readiness) every model with it."""
        self._refuse_exiting()
        if self._state != "ready":
            return False
        if not self._settings.strict_readiness:
            return True
        return all(
            (record.loaded is not None and record.loaded.are_all_ready()) or record.reason == UNLOADED
            for model in self._registry
            for record in model.versions.values()
        ) and not any(model.reason for model in self._registry)

    async def check_server_ready(self) -> bool:
        """As `is_ready`, and the models say so of themselves. See `EngineDoor.check_server_ready`."""
        return self.is_ready() and (
            not self._settings.strict_readiness or await are_ready(self._registry.ready_versions())
        )

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        """As `is_model_ready`, and the model says so of itself. See `EngineDoor.check_ready`."""
        return self.is_model_ready(name, version) and await are_ready([self._registry.find(name, version)])

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether the version can infer now."""
        try:
            return self._registry.find(name, version).is_ready()
        except NaiadError as error:
            if error.code is Code.NOT_FOUND and "is not found" in error.message:
                raise
            return False

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Inputs and outputs of a model."""
        metadata = self._registry.find(name, version).metadata
        if version != LATEST:
            return metadata
        return ModelMetadata(
            name=metadata.name,
            versions=tuple(map(str, self._registry.versions(name))),
            platform=metadata.platform,
            inputs=metadata.inputs,
            outputs=metadata.outputs,
        )

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        """The effective configuration as the reference prints it."""
        return self._registry.find(name, version).config_json

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        """Statistics of one version, of all versions of a model, or (no name) of all models."""
        serving = sorted(self._registry.ready_versions(), key=lambda loaded: (loaded.config.name, loaded.version))
        of_model = [loaded for loaded in serving if name in {"", loaded.config.name}]
        if name and not of_model:
            raise InvalidRequestError(f"requested model '{name}' is not available")
        asked = [loaded for loaded in of_model if version in {LATEST, loaded.version}]
        if name and not asked:
            raise InvalidRequestError(f"requested model version is not available for model '{name}'")
        return [loaded.statistics() for loaded in asked]

    def repository_index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """All models of the repositories with their states."""
        return self._registry.index(ready_only=ready_only)

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        """Whether the model may answer a request any number of times."""
        return self._registry.find(name, version).config.decoupled

    def outcomes(self) -> list[tuple[str, int | None, str]]:
        """Model, version and status of everything that was asked for: the rows of the start-up table."""
        rows = []
        for entry in self._registry.index(ready_only=False):
            status = entry.state.value if entry.state is not None else ""
            version = int(entry.version) if entry.version else None
            rows.append((entry.name, version, f"{status}: {entry.reason}" if entry.reason else status))
        return rows

    def pending_counts(self) -> Mapping[tuple[str, str], int]:
        """Requests waiting for an instance, by model and version."""
        return {
            (loaded.config.name, str(loaded.version)): loaded.pending_count
            for loaded in self._registry.ready_versions()
        }

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, request: InferRequest, sink: Sink) -> int:
        """Queue *request*; its responses go to *sink*. See `EngineDoor.submit`."""
        if self._state == "exiting":
            self._refuse_exiting()
        version = self._registry.find(request.model_name, request.model_version)
        return version.number << _KEY_BITS | version.submit(request, sink)

    def cancel(self, ticket: int) -> None:
        """Take a request back."""
        version = self._registry.by_number.get(ticket >> _KEY_BITS)
        if version is not None:
            version.cancel(ticket & _KEY_MASK)

    def taken(self, ticket: int, count: int = 1) -> None:
        """Say that responses have left for the client. See `EngineDoor.taken`."""
        version = self._registry.by_number.get(ticket >> _KEY_BITS)
        if version is not None:
            version.taken(ticket & _KEY_MASK, count)

    # -- loading ------------------------------------------------------------------------------------------------

    async def load(self, name: str, parameters: Mapping[str, str | bytes], *, is_nested: bool = False) -> None:
        """Load or reload a model (explicit control mode only); past other loads, if one of them waits for it."""
        self._require_explicit()
        strict = self._settings.strict_config
        source = await asyncio.to_thread(find_source, name, parameters, self._settings.repositories, strict=strict)
        async with self._locks.setdefault(name, asyncio.Lock()):
            await self._load_model(source, is_nested=is_nested)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:  # noqa: ARG002 - no ensembles yet
        """Begin to unload a model; unknown names are a success, as in the reference."""
        self._require_explicit()
        async with self._locks.setdefault(name, asyncio.Lock()):  # a load that is under way comes first
            if name in [model.name for model in self._registry]:
                for record in self._registry.record(name).versions.values():
                    self._begin_unload(name, record)

    def _begin_unload(self, name: str, record: VersionRecord) -> None:
        loaded = record.loaded
        if loaded is None:
            return
        record.become(ModelState.UNLOADING)
        self._registry.changed(name)  # before anything stops: no request may find it any more
        record.leaving = loaded
        self._in_background(self._unload(record, loaded))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._unloads.add(task)
        task.add_done_callback(self._unloads.discard)

    async def _end(self, version: ModelVersion) -> None:
        await version.stop(self._settings.exit_timeout)
        self._registry.by_number.pop(version.number, None)
        self._sources.pop(version.number, None)

    async def _unload(self, record: VersionRecord, loaded: ModelVersion) -> None:
        await self._end(loaded)
        if record.leaving is loaded and record.state is ModelState.UNLOADING:  # else it was loaded again meanwhile
            record.become(ModelState.UNAVAILABLE, UNLOADED)
        logger.info("successfully unloaded '%s' version %d", loaded.config.name, loaded.version)

    async def _load_model(self, source: ModelSource, *, is_nested: bool = False) -> None:
        """Load the versions that the policy names; raise if one fails, leaving what served before."""
        files = source.files
        model = self._registry.record(files.name)
        async with contextlib.nullcontext() if is_nested else self._slots:
            try:
                message = await asyncio.to_thread(
                    source.read_config, strict=self._settings.strict_config, config_name=self._settings.config_name
                )
                policy = freeze_version_policy(message.version_policy)
                numbers = versions_to_load(policy, available_versions(files), files.name)
            except NaiadError as error:
                model.reason = error.message
                logger.error("failed to load '%s': %s", files.name, error.message)  # noqa: TRY400 - the user's error
                raise ConfigError(f"failed to load '{files.name}': {error.message}", code=error.code) from error
            model.reason = ""
            failures = []
            for number in numbers:
                try:
                    record = model.versions.setdefault(number, VersionRecord())
                    await self._load_version(record, source, message, number)
                except NaiadError as error:
                    failures.append((number, error))
            if not failures:
                for number in set(model.versions) - set(numbers):  # loaded once, and no longer asked for
                    self._begin_unload(files.name, model.versions[number])
        if failures:
            reasons = "".join(
                f"version {number} is at UNAVAILABLE state: {error.code.value}: {error.message};\n"
                for number, error in failures
            )
            raise InvalidRequestError(f"load failed for model '{files.name}': {reasons}")

    async def _load_version(self, record: VersionRecord, source: ModelSource, message: Any, number: int) -> None:
        files, before = source.files, record.loaded
        if before is None:
            record.become(ModelState.LOADING)
        started = time.monotonic()
        logger.info("loading: %s:%d", files.name, number)
        try:
            loaded = await self._try_to_load(files, message, number)
        except NaiadError as error:
            reason = f"{error.code.value}: {error.message}"
            logger.error("failed to load '%s' version %d: %s", files.name, number, reason)  # noqa: TRY400 - likewise
            if isinstance(error, ModelError) and error.traceback_text:
                logger.error("%s", error.traceback_text)  # noqa: TRY400 - likewise
            if before is None:
                record.become(ModelState.UNAVAILABLE, reason)
            raise
        except BaseException as error:
            if before is None:
                record.become(ModelState.UNAVAILABLE, f"{Code.INTERNAL.value}: {error!r}")
            raise
        logger.info("successfully loaded '%s' in %.2f s", files.name, time.monotonic() - started)
        self._registry.by_number[loaded.number] = loaded
        self._sources[loaded.number] = source
        if before is None:
            record.become(ModelState.READY, loaded=loaded)
        else:
            record.loaded = loaded
            self._in_background(self._end(before))
        self._registry.changed(files.name)  # at once: what stops must not be found by a request any more

    async def _try_to_load(self, files: ModelFiles, message: Any, number: int) -> ModelVersion:
        for attempt in range(self._settings.load_retries):
            try:
                return await self._loader.load(files, message, number, self.services)
            except NaiadError as error:
                logger.warning("loading '%s' failed (attempt %d): %s", files.name, attempt + 1, error.message)
        return await self._loader.load(files, message, number, self.services)

    def _require_explicit(self) -> None:
        self._refuse_exiting()
        if not self.is_started:
            raise NotReadyError("Server not ready")
        if not self._settings.is_explicit:
            raise NotReadyError("explicit model load / unload is not allowed if polling is enabled")

    def _refuse_exiting(self) -> None:
        if self._state == "exiting":
            raise NotReadyError("Server exiting")

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                for version in self._registry.ready_versions():
                    version.tidy()
            except Exception:
                logger.exception("cannot tidy up")
