"""The engine: implements `EngineFacade` with the registry of loaded versions and the loading of models.

Methods that are not coroutines return without blocking. Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import naiad
from naiad.core import blocking
from naiad.core.errors import (
    Code,
    InvalidRequestError,
    NaiadError,
    NoLoadedVersionError,
    NotReadyError,
    RepositoryError,
    UnknownModelError,
)
from naiad.engine.calls.services import ModelServices
from naiad.engine.lifecycle.exit_time import ExitTime
from naiad.engine.lifecycle.states import UNLOADED
from naiad.engine.loading.demand import DemandLoads
from naiad.engine.loading.load_order import LoadOrder
from naiad.engine.loading.loader import Loader
from naiad.engine.loading.model_loads import ModelLoads
from naiad.engine.loading.model_source import ModelSource, find_sources, in_no_repository
from naiad.engine.loading.polling import Poller
from naiad.engine.loading.scaling import InstanceScaling
from naiad.engine.open_request import OpenRequest
from naiad.engine.registry import Registry
from naiad.engine.response_cache import ResponseCache
from naiad.engine.served import LoadedVersion, SequenceOwner, Target
from naiad.engine.serving.readiness import are_ready, stalls_of
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.engine.statistics.custom_metrics import ModelMetrics
from naiad.models.polling import Snapshot
from naiad.models.repository.layout import DUPLICATE_REASON, ModelFiles, models_named
from naiad.models.repository.repositories import Repositories
from naiad.protocol.inference import Buffer, InferRequest, Sink
from naiad.protocol.metadata import (
    DemandStatus,
    IndexEntry,
    InstanceStatus,
    ModelMetadata,
    ModelState,
    ModelStatistics,
    ServerMetadata,
)
from naiad.protocol.model_names import LATEST, model_key
from naiad.protocol.request_plan import error_prefix

logger = logging.getLogger("naiad.engine")

_RELEASE_SECONDS = 2.0  # how often versions release idle memory
_FINISH_SECONDS = 0.02  # how often to check whether sequences have ended while the server exits


class _EngineState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"


class Engine:
    """Implements `naiad.engine.facade.EngineFacade`."""

    def __init__(self, settings: EngineSettings, loader: Loader) -> None:
        self._settings = settings
        self._repositories = settings.repositories
        self._registry = Registry(is_namespaced=self._repositories.is_namespaced)
        self._registry.activity = loader.activity
        self._registry.is_complete = False  # until `start` has read the repositories
        self.services = ModelServices(self._registry)
        self.metrics = ModelMetrics(self.services)
        size = settings.response_cache_size
        self.response_cache = ResponseCache(size) if size else None
        self._processes = loader.processes
        if loader.limiter is not None:
            loader.limiter.on_waiting = self.services.calls.on_call_waiting
            self.services.calls.resource_waits = loader.limiter.waits
        loads = ModelLoads(settings, loader, self._registry, self.services, self.response_cache)
        self._order = LoadOrder(loads, self._registry)
        self._demand = DemandLoads(settings, loads, self._order, self._registry)
        self._scaling = InstanceScaling(loads, self._order, self._registry)
        seconds = settings.poll_seconds
        self._poller = None if seconds is None else Poller(self._repositories, self._order, self._registry, seconds)
        self._polling: asyncio.Task[None] | None = None
        self._state = _EngineState.STARTING
        # Whether clients should connect: False while a port for clients is not open yet, and when the server is about
        # to stop. The server is not ready then.
        self.is_reachable = True
        # Has other processes report what they have counted; None if this process counts all.
        self.count_elsewhere: Callable[[], Awaitable[None]] | None = None
        # Waits until other processes know of changed routes, if there are any.
        self.wait_announced: Callable[[], Awaitable[None]] | None = None
        self.received_count = 0  # requests of clients of this process
        # How long requests and models are waited for when the server stops.
        self.exit_time = ExitTime(settings.exit_timeout, asyncio.get_running_loop().time)
        self.has_overrun = False
        self._refusals = {"exiting": 0, "not_loaded": 0, "unknown_model": 0}
        self._is_finishing = False  # whether sequences may continue while the server exits
        self._releasing = asyncio.get_running_loop().create_task(self._maintain())

    @property
    def repositories(self) -> Repositories:
        return self._repositories

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> list[NaiadError]:
        """Load the models of the repositories, or the requested ones; the errors of those that failed.

        Raises:
            RepositoryError: If a repository cannot be read.
        """
        snapshot: Snapshot = {}
        if self._poller is not None:
            found, snapshot = await blocking.run(self._repositories.snapshot)
        else:
            found = await blocking.run(self._repositories.scan)
        self._registry.is_complete = True
        for key in found.duplicates:
            self._registry.record(key).reason = DUPLICATE_REASON
        wanted = dict(found.models)
        failures: list[NaiadError] = [RepositoryError(f"{key}: {DUPLICATE_REASON}") for key in found.duplicates]
        if self._settings.is_explicit:
            wanted, missing = self._startup(wanted)
            failures = missing
        elif self._poller is None and not wanted and not failures:
            logger.warning(
                "there are no models in %s; each directory in a repository is a model: "
                "<repository>/<model>/<version>/model.py",
                ", ".join(self._repositories.locations),
            )
        outcomes = await self._order.load_all(
            {key: ModelSource(files=files) for key, files in wanted.items()}, found.models
        )
        if self._poller is not None:
            self._poller.begin(snapshot, outcomes)
            self._polling = asyncio.get_running_loop().create_task(self._poller.run())
        for name, outcome in outcomes.items():
            if isinstance(outcome, NaiadError):
                failures.append(outcome)
            elif isinstance(outcome, BaseException):
                logger.error("cannot load '%s'", name, exc_info=outcome)
                failures.append(NaiadError(f"cannot load '{name}': {outcome}"))
        self._state = _EngineState.READY
        return failures

    async def finish_sequences(self) -> None:
        """Reject all requests except those of sequences in progress, until these end or the exit timeout expires.

        Without a sequence in progress, only new sequences are rejected: requests that were sent before their clients
        could know of the stop are still answered.
        """
        if not self._close_sequences():
            return
        self._state, self._is_finishing = _EngineState.EXITING, True
        while self.exit_time.for_requests() and self._close_sequences():
            await asyncio.sleep(_FINISH_SECONDS)
        self._is_finishing = False

    def _close_sequences(self) -> int:
        versions = self._registry.versions_alive.values()
        return sum([version.finish_sequences() for version in versions if isinstance(version, SequenceOwner)])

    async def end_loads(self) -> None:
        await self._order.end_loads()

    async def stop(self) -> None:
        self._state = _EngineState.EXITING
        self._releasing.cancel()
        had_time = self.exit_time.for_requests() > 0
        was_busy = any(version.is_finishing_requests() for version in self._registry.versions_alive.values())
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self._order.end_loads()
        await self._scaling.stop()
        await self._demand.stop()
        await self._order.stop(self.exit_time.for_models())
        self.has_overrun = was_busy if not had_time else not self.exit_time.for_requests()
        await blocking.run(self._repositories.close)
        await blocking.run(self._processes.close)

    async def poll(self) -> None:
        """Poll the repositories now (poll control mode only); returns once the changes are loaded and unloaded."""
        self._reject_if_exiting()
        if self._poller is None:
            raise NotReadyError("polling is disabled")
        if not self.is_started():
            raise NotReadyError("Server not ready")
        await self._poller.poll()

    def _startup(self, models: dict[str, ModelFiles]) -> tuple[dict[str, ModelFiles], list[NaiadError]]:
        names = self._settings.startup_models
        if names == ("*",):
            return models, []
        missing: list[NaiadError] = []
        chosen: dict[str, ModelFiles] = {}
        for name in names:
            named = models_named(name, models)
            chosen.update((files.key, files) for files in named)
            if not named:
                problem = in_no_repository(name, models, self._repositories.locations)
                logger.error("%s", problem.message)
                missing.append(problem)
        return chosen, missing

    # -- queries ------------------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(name=self._settings.server_id, version=naiad.__version__)

    def is_started(self) -> bool:
        return self._state is not _EngineState.STARTING

    def is_live(self) -> bool:
        """Whether the server has not begun to exit, and is of use: see `are_models_lost`."""
        self._reject_if_exiting()
        return not self.is_started() or not self.are_models_lost()

    def are_models_lost(self) -> bool:
        """Whether only another server could help: every model is given up, recovery fails, and no client can load one.

        False unless models are loaded at the start alone: in other modes, clients or polling may replace them.
        """
        if self._settings.is_explicit or self._poller is not None:
            return False
        lost = [version.is_lost for version in self._registry.ready_versions()]
        return bool(lost) and all(lost)

    def is_ready(self) -> bool:
        self._reject_if_exiting()
        if self._state is not _EngineState.READY or not self.is_reachable:
            return False
        if not self._settings.strict_readiness:
            return True
        return all(
            (record.loaded is not None and record.loaded.are_all_ready()) or record.reason == UNLOADED
            for model in self._registry
            for record in model.versions.values()
        ) and not any(model.reason for model in self._registry)

    async def check_server_ready(self) -> bool:
        return self.is_ready() and (
            not self._settings.strict_readiness or await are_ready(self._registry.ready_versions())
        )

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        return self.is_model_ready(name, version) and await are_ready([self._registry.find_loaded(name, version)])

    def stalls(self, name: str, version: int = LATEST) -> str:
        try:
            return stalls_of(self._registry.find_loaded(name, version))
        except NaiadError:
            return ""

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        try:
            return self._registry.find_loaded(name, version).is_ready()
        except NoLoadedVersionError:
            return False
        except UnknownModelError as error:
            # An ambiguous name (INVALID_ARG) is not ready; a name that does not exist is an error.
            if error.code is Code.NOT_FOUND:
                raise
            return False
        except NaiadError:
            return False

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
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
        return self._registry.find_loaded(name, version).config.json

    async def gather_counts(self) -> None:
        if self.count_elsewhere is not None:
            await self.count_elsewhere()

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        serving = sorted(
            ((model, loaded) for model in self._registry for loaded in model.serving()),
            key=lambda each: (each[0].namespace, each[0].name, each[1].version),
        )
        of_model = [(model, loaded) for model, loaded in serving if name in {"", model.name, model.key}]
        if name and len({model.key for model, _ in of_model}) != 1:  # no model, or one in each of several namespaces
            raise InvalidRequestError(f"requested model '{name}' is not available")
        asked = [(model, loaded) for model, loaded in of_model if version in {LATEST, loaded.version}]
        if name and not asked:
            raise InvalidRequestError(f"requested model version is not available for model '{name}'")
        return [loaded.statistics() for _, loaded in asked]

    def ready_index(self) -> Sequence[IndexEntry]:
        return self._registry.index(ready_only=True)

    async def repository_index(self) -> Sequence[IndexEntry]:
        """All models of the repositories; one that is slow to be listed, on a network, keeps no request waiting."""
        stored = await self._forget_removed()
        return self._registry.index(ready_only=False, stored=stored)

    async def _forget_removed(self) -> Sequence[ModelFiles]:
        """Forget models that no repository has any more, unless they serve; the models that they have."""
        stored = await blocking.run(self._repositories.known_models)
        self._order.forget_removed({files.key for files in stored})
        return stored

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        return self.route(name, version).config.decoupled

    def outcomes(self) -> list[tuple[str, int | None, str]]:
        rows = []
        for entry in self._registry.index(ready_only=False):
            status = entry.state.value if entry.state is not None else ""
            reason = "" if entry.state is ModelState.LOADING else entry.reason  # of a load, what it does now
            version = int(entry.version) if entry.version else None
            rows.append(
                (
                    model_key(entry.namespace, entry.name),
                    version,
                    f"{status}: {reason}" if reason else status,
                )
            )
        return rows

    def instances(self) -> list[InstanceStatus]:
        found: list[InstanceStatus] = []
        for loaded in self._registry.ready_versions():
            if isinstance(loaded, ModelVersion):
                found += loaded.statuses()
                found += () if loaded.replicas is None else loaded.replicas.statuses()
        return found

    def demand_status(self) -> DemandStatus | None:
        return self._demand.status()

    def demand_states(self) -> Mapping[str, str]:
        """The state of each model that is loaded on demand, by its key: dormant, loading, loaded, failed."""
        return self._demand.states()

    def call_counts(self) -> Mapping[tuple[str, str], int]:
        return dict(self.services.calls.made)

    @property
    def is_draining(self) -> bool:
        """Whether the server still serves, while clients should connect to other servers."""
        return self._state is _EngineState.EXITING or (self.is_started() and not self.is_reachable)

    def route(self, name: str, version: int) -> Target:
        """What an inference request to a name goes to now; a request without one is counted as refused."""
        try:
            return self._registry.find(name, version)
        except NaiadError as error:
            is_known = isinstance(error, NoLoadedVersionError | NotReadyError)
            self._refusals["not_loaded" if is_known else "unknown_model"] += 1
            raise

    def refusals(self) -> Mapping[str, int]:
        return self._refusals

    def find_target(self, name: str, version: int = LATEST) -> Target:
        return self._registry.find(name, version)

    def find_loaded(self, name: str, version: int = LATEST) -> LoadedVersion:
        return self._registry.find_loaded(name, version)

    def on_routes_changed(self, callback: Callable[[], None]) -> None:
        self._registry.on_change = callback

    # -- requests -----------------------------------------------------------------------------------------------

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        direct = self._registry.find(name, version).direct
        return None if direct is None else direct.reserve_input(size, ahead)

    def submit(self, request: InferRequest, sink: Sink) -> OpenRequest:
        self.received_count += 1
        version = self.admitted_target(request)
        opened = OpenRequest(request, sink)
        version.accept(opened)
        return opened

    def admitted_target(self, request: InferRequest) -> Target:
        """What a request goes to, if it may come now; one that may not is counted as refused."""
        if self._state is _EngineState.EXITING:
            try:
                self._reject_new_sequences(request)
            except NotReadyError:
                self._refusals["exiting"] += 1
                raise
        return self.route(request.model_name, request.model_version)

    @property
    def in_flight(self) -> int:
        versions = self._registry.versions_alive.values()
        return sum(version.in_flight for version in versions if isinstance(version, ModelVersion))

    @property
    def is_exiting(self) -> bool:
        return self._state is _EngineState.EXITING

    # -- loading ------------------------------------------------------------------------------------------------

    async def load(self, name: str, parameters: Mapping[str, str | Buffer], *, is_nested: bool = False) -> bool:
        """Load or reload a model (explicit control mode only).

        With *is_nested*, do not wait for a free slot among the loads: another load waits for this one.
        """
        self._require_explicit()
        strict, gpus = self._settings.strict_config, self._settings.gpus
        try:
            sources = await blocking.run(find_sources, name, parameters, self._repositories, strict=strict, gpus=gpus)
            is_finishing = await self._order.load(sources, is_nested=is_nested)
        finally:
            if any(model.is_at_rest for model in self._registry):  # else there is nothing to forget
                await self._forget_removed()
        await self._announce()
        return is_finishing

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Start to unload a model; unknown names are a success, as in the reference. See `LoadOrder.unload`."""
        self._require_explicit()
        for key in self._registry.keys_of(name) or [name]:
            await self._order.unload(key, with_members=unload_dependents)
        await self._announce()

    async def _announce(self) -> None:
        """Return once other processes know of a change: their clients may use it from now on."""
        if self.wait_announced is not None:
            await self.wait_announced()

    def _require_explicit(self) -> None:
        self._reject_if_exiting()
        if not self.is_started():
            raise NotReadyError("Server not ready")
        if self._settings.is_demand:
            raise NotReadyError(
                "explicit model load / unload is not allowed with --model-control-mode=demand: requests load models"
            )
        if not self._settings.is_explicit:
            raise NotReadyError("explicit model load / unload is not allowed if polling is enabled")  # Triton's text

    def _reject_new_sequences(self, request: InferRequest) -> None:
        if not self._is_finishing:
            self._reject_if_exiting()
        elif not self._registry.find(request.model_name, request.model_version).open_sequences:
            raise NotReadyError(
                f"{error_prefix(request)}Server is stopping, scheduler for model has stopped accepting new inference "
                "requests"
            )

    def _reject_if_exiting(self) -> None:
        if self._state is _EngineState.EXITING:
            raise NotReadyError("Server exiting")

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(_RELEASE_SECONDS)
            try:
                for version in self._registry.versions_alive.values():
                    if isinstance(version, ModelVersion):
                        version.maintain()
            except Exception:
                logger.exception("cannot release idle memory or change the log level of guests")
