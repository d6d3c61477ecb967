"""Loads, reloads and unloads single models; `load_order` decides which ones and in which order.

A reload never interrupts service. The new version is loaded beside the old one and replaces it in the registry in one
step; only then the old one finishes its requests and ends. If loading fails, the old one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze, freeze_version_policy
from naiad.config.model.parameters import ModelParameters, or_default
from naiad.config.model.scaling import with_count
from naiad.core import blocking, clock
from naiad.core.errors import Code, ConfigError, InvalidRequestError, ModelError, NaiadError
from naiad.engine.calls.services import ModelServices
from naiad.engine.ensembles.build import checked_ensemble, find_members, make_ensemble, needed_models
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.lifecycle.states import UNLOADED
from naiad.engine.loading.instance_change import changed_instances, has_other_changes, specs_with
from naiad.engine.loading.loader import Loader
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.loading.unchanged import is_whole, model_signature, version_signature
from naiad.engine.registry import ModelRecord, Registry, VersionRecord
from naiad.engine.response_cache import ResponseCache
from naiad.engine.served import LoadedVersion, SequenceOwner, ServedVersion, Target, metadata_of
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.serving.handover import Handover
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.models.polling import Signature
from naiad.models.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.models.repository.read import config_path
from naiad.models.repository.repositories import directory_signature
from naiad.protocol.metadata import ModelState, with_labels

logger = logging.getLogger("naiad.engine")

_FINISH_SECONDS = 0.05
"""How often to check whether the last sequence of a replaced version has ended."""

_REQUEST_SECONDS = 0.5
"""How long a load waits for requests in flight of what it replaced. They may take any time; `finalize` is awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What a version was loaded from.

    Attributes:
        signature: The signature of its files and of what it uses besides; None if it is unknown.
    """

    source: ModelSource
    message: pb.ModelConfig
    signature: Signature | None


class OnWakeModel(Protocol):
    """Called when a request needs a dormant model (see `naiad.engine.serving.dormant.OnWake`)."""

    def __call__(self, key: str, *, is_urgent: bool) -> None:
        """Start to load the model of *key*."""


class _FoundModel(NamedTuple):
    """What the files of a model say.

    Attributes:
        numbers: The versions to load.
    """

    own: Signature | None
    message: pb.ModelConfig
    numbers: tuple[int, ...]
    parameters: ModelParameters


class ModelLoads:
    """Adds versions of models to the registry and removes them; models are identified by their keys.

    Attributes:
        ensembles: The source of each loaded ensemble.
        needs: The members of each of them.
        after: The models that each model names as those to load before it, because it calls them (LOAD_AFTER).
        on_wake: Called with the key of a dormant model when a request needs it.
        on_loaded: Called with the key of a model and each version of it that has been started.
    """

    def __init__(
        self,
        settings: EngineSettings,
        loader: Loader,
        registry: Registry,
        services: ModelServices,
        cache: ResponseCache | None = None,
    ) -> None:
        self.ensembles: dict[str, ModelSource] = {}
        self.needs: dict[str, frozenset[str]] = {}
        self.after: dict[str, frozenset[str]] = {}
        self.on_wake: OnWakeModel = _ignore_wake
        self.on_loaded: Callable[[str, ModelVersion], None] = lambda key, version: None  # noqa: ARG005 - a callback
        self._settings = settings
        self._loader = loader
        self._registry = registry
        self._services = services
        self._cache = cache
        self._slots = asyncio.Semaphore(settings.load_threads)
        self._loading: WeakValueDictionary[str, blocking.LendableSlot] = WeakValueDictionary()
        self._unloads: dict[asyncio.Task[None], str] = {}  # versions being stopped, with their model
        self._signatures: dict[str, Signature | None] = {}  # signatures of models' files when they were loaded
        self._origins: dict[int, _Origin] = {}  # by number of the load: keeps temporary files until it ends
        self._replaced: dict[asyncio.Task[None], LoadedVersion] = {}  # what was replaced by a load and ends now

    def read_config(self, source: ModelSource) -> pb.ModelConfig:
        """The configuration of a model, before the model completes it; blocks."""
        return source.read_config(
            strict=self._settings.strict_config, config_name=self._settings.config_name, gpus=self._settings.gpus
        )

    async def is_unchanged(self, source: ModelSource) -> bool:
        """Whether all serving versions of the model were loaded from its present files: a load has nothing to do.

        Its files are fetched first.
        """
        key = source.files.key
        model, before = self._registry.known(key), self._signatures.get(key)
        is_compared = source.override is None and model is not None and before is not None and is_whole(model)
        now = await blocking.run(self._signature_now, source.files, model if is_compared else None)
        return now is not None and now == before

    def _signature_now(self, files: ModelFiles, model: ModelRecord | None) -> Signature | None:
        """The signature of a model's files, fetched first; None if it is unknown, or not asked for. Blocks."""
        self._settings.repositories.fetch(files)
        return None if model is None else model_signature(directory_signature(files.directory), model)

    async def wait_unloaded(self) -> None:
        await asyncio.gather(*self._unloads, return_exceptions=True)

    async def wait_replaced(self, key: str) -> bool:
        """Wait for `finalize` of what loads of a model have replaced, but not for requests in flight.

        Returns:
            Whether some of it is still ending.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REQUEST_SECONDS
        while ending := [task for task in self._replaced if self._unloads.get(task) == key]:
            if loop.time() >= deadline and any(self._replaced[task].is_finishing_requests() for task in ending):
                logger.info("'%s': replaced instances still have requests in flight, and end after these", key)
                return True
            await asyncio.wait(ending, timeout=_FINISH_SECONDS)
        return False

    def forget(self, key: str) -> None:
        """Forget a model that does not serve and has no files any more."""
        self._signatures.pop(key, None)

    def end_blocked_load(self, name: str) -> None:
        """End a load in progress of a model if it waits for something that may never come, such as a build."""
        slot = self._loading.get(name)
        if slot is not None:
            slot.end_when_lent()

    def unload(self, name: str) -> list[asyncio.Task[None]]:
        """Start to unload all versions of a model; tasks that end when these, and replaced ones, are stopped."""
        model = self._registry.known(name)
        self._signatures.pop(name, None)
        if model is None:
            return []
        for record in model.versions.values():
            self._begin_unload(name, record)
        return [task for task, ending in self._unloads.items() if ending == name]

    def _begin_unload(self, name: str, record: VersionRecord) -> None:
        loaded = record.loaded
        if loaded is None:
            return
        record.become(ModelState.UNLOADING)
        self._registry.changed(name)  # before anything stops, so that no further request reaches it
        record.leaving = loaded
        self._in_background(name, self._unload(name, record, loaded))

    def _in_background(
        self, name: str, work: Coroutine[Any, Any, None], *, replaced: LoadedVersion | None = None
    ) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._unloads[task] = name
        task.add_done_callback(self._unloads.pop)
        if replaced is not None:
            self._replaced[task] = replaced
            task.add_done_callback(self._replaced.pop)

    def _replace(self, key: str, record: VersionRecord, before: ServedVersion, loaded: ServedVersion) -> None:
        """Let *loaded* serve in place of *before*, which finishes its requests and sequences."""
        now = record.handover
        olds: list[Target] = [*now.olds, before] if isinstance(now, Handover) else [before]
        record.loaded, record.handover = loaded, None
        # An ensemble has no sequences of its own: the models of its steps continue, and may start further ones.
        if not sum([old.finish_sequences() for old in olds if isinstance(old, SequenceOwner)]):
            self._in_background(key, self._end(before), replaced=before)
            return
        record.handover = Handover(olds, loaded)
        self._in_background(key, self._hand_over(key, record, before), replaced=before)

    async def _hand_over(self, key: str, record: VersionRecord, old: ServedVersion) -> None:
        """Wait for the sequences of an old version, at most for the exit timeout, then stop it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.exit_timeout
        while isinstance(old, SequenceOwner) and old.finish_sequences() and loop.time() < deadline:
            now = record.handover  # another one, if the model was reloaded again
            if not isinstance(now, Handover) or old not in now.olds:
                break
            await asyncio.sleep(_FINISH_SECONDS)
        now = record.handover
        if isinstance(now, Handover) and old in now.olds:
            now.olds.remove(old)
            if not now.olds:
                record.handover = None
                self._registry.changed(key)
        await self._end(old)

    async def _end(self, version: ServedVersion) -> None:
        await version.stop(self._settings.exit_timeout)
        self._registry.versions_alive.pop(version.number, None)
        if self._cache is not None:
            self._cache.forget(version.number)
        self._origins.pop(version.number, None)

    async def _unload(self, key: str, record: VersionRecord, loaded: ServedVersion) -> None:
        await self._end(loaded)
        if record.leaving is loaded and record.state is ModelState.UNLOADING:  # else it was loaded again meanwhile
            record.become(ModelState.UNAVAILABLE, UNLOADED)
        logger.info("successfully unloaded '%s' version %d", key, loaded.version)

    async def wake(self, key: str) -> None:
        """Load the dormant versions of a model; those that wait for them are answered by the loaded ones.

        Does nothing without dormant versions: the model was unloaded or loaded meanwhile. One that fails stays dormant.
        """
        model = self._registry.known(key)
        versions = {} if model is None else {number: each.loaded for number, each in model.versions.items()}
        dormant = [each for each in versions.values() if isinstance(each, DormantVersion)]
        if dormant:
            source = self._origins[dormant[0].number].source
            kept = frozenset(number for number, each in versions.items() if isinstance(each, ModelVersion))
            await self.load(replace(source, kept=kept), is_nested=True, is_waking=True)

    def put_to_sleep(self, key: str) -> list[asyncio.Task[None]]:
        """Replace the loaded versions of a model by dormant ones; returns the tasks that stop them."""
        model = self._registry.known(key)
        for record in [] if model is None else list(model.versions.values()):
            loaded = record.loaded
            if isinstance(loaded, ModelVersion) and record.handover is None:
                dormant = DormantVersion(
                    loaded.config,
                    loaded.version,
                    partial(self.on_wake, key),
                    timeout=self._settings.demand_load_timeout,
                    is_known=True,
                    metadata=loaded.metadata,
                    totals=loaded.totals,
                )
                self._install(record, loaded, dormant, self._origins[loaded.number])
        return [task for task, ending in self._unloads.items() if ending == key]

    async def load(self, source: ModelSource, *, is_nested: bool = False, is_waking: bool = False) -> None:
        """Load the versions that the version policy selects. Those of a model on demand only become dormant.

        With *is_nested*, do not wait for a free slot among the loads; with *is_waking*, load the model also if it is on
        demand. If a version fails, what served before continues to.
        """
        key = source.files.key
        model = self._registry.record(key)
        self._signatures.pop(key, None)
        slot = blocking.LendableSlot(None if is_nested else self._slots)
        self._loading[key] = slot
        model.step = "waiting for other loads"
        try:
            async with slot:
                found, failures = await self._load_found(source, model, is_waking=is_waking)
        finally:
            model.step = ""
        if failures:
            reasons = "".join(
                f"version {number} is at UNAVAILABLE state: {error.code.value}: {error.message};\n"
                for number, error in failures
            )
            raise InvalidRequestError(f"load failed for model '{key}': {reasons}")
        self._signatures[key] = None
        is_ensemble = key in self.needs  # its members may have changed, and loading it is cheap
        if self._settings.is_explicit and source.override is None and not is_ensemble:
            self._signatures[key] = await blocking.run(model_signature, found.own, model)

    async def _load_found(
        self, source: ModelSource, model: ModelRecord, *, is_waking: bool
    ) -> tuple[_FoundModel, list[tuple[int, NaiadError]]]:
        """Load the versions of a model; what its files say, and the versions that failed, with their errors."""
        model.step = "reading its configuration"
        found = await self._prepare(source, model)
        model.reason = ""
        model.is_on_demand = self._is_on_demand(found.message, found.parameters)
        is_dormant = model.is_on_demand and not is_waking and not is_loaded(model)
        load_version = self._make_dormant if is_dormant else self._load_version
        failures = []
        for number in found.numbers:
            try:
                if number in source.kept and number in model.versions and model.versions[number].loaded is not None:
                    continue
                record = model.versions.setdefault(number, VersionRecord())
                origin = _Origin(source=source, message=found.message, signature=found.own)
                await load_version(record, number, origin)
            except NaiadError as error:
                failures.append((number, error))
        if not failures:
            for number in set(model.versions) - set(found.numbers):  # no longer selected by the policy
                self._begin_unload(model.key, model.versions[number])
        return found, failures

    def _read(self, source: ModelSource) -> _FoundModel:
        files = source.files
        # Before the files are read: a later change must lead to another load.
        own = directory_signature(files.directory)
        message = self.read_config(source)
        parameters = source.parameters(message, config_name=self._settings.config_name)
        policy = freeze_version_policy(message.version_policy)
        numbers = versions_to_load(policy, available_versions(files), files.name, files.directory)
        return _FoundModel(own, message, numbers, parameters)

    async def _prepare(self, source: ModelSource, model: ModelRecord) -> _FoundModel:
        """What the files of a model say; an ensemble is checked, and its members are noted."""
        files, key = source.files, source.files.key
        try:
            found = await blocking.run(self._read, source)
        except NaiadError as error:
            model.reason = error.message
            logger.error("failed to load '%s': %s", key, error.message)  # noqa: TRY400 - the model's error, not the server's
            raise ConfigError(f"failed to load '{key}': {error.message}", code=error.code) from error
        message = found.message
        if not message.HasField("ensemble_scheduling"):
            self.ensembles.pop(key, None)
            self.needs.pop(key, None)
            return found
        self.ensembles[key] = source
        find_members(message, files.namespace, self._registry.keys_of)
        self.needs[key] = needed_models(message)
        try:
            return found._replace(message=checked_ensemble(message, key, self._registry, self.needs))
        except NaiadError as error:
            model.reason = error.message
            logger.error("%s", error.message)  # noqa: TRY400 - the model's error, not the server's
            raise InvalidRequestError(f"load failed for model '{key}': {error.message}\n", code=error.code) from error

    def _is_on_demand(self, message: pb.ModelConfig, parameters: ModelParameters) -> bool:
        """Whether a model is loaded by its first request. Ensembles are not: they have no guests."""
        if message.HasField("ensemble_scheduling"):
            return False
        return or_default(parameters.is_on_demand, self._settings.is_demand)

    def release_prewarmed(self) -> None:
        """End the fork servers that no loaded model uses: no dormant model will be loaded any more."""
        self._loader.release_prewarmed()

    async def _make_dormant(self, record: VersionRecord, number: int, origin: _Origin) -> None:
        """Install a dormant version, which the first request replaces by a loaded one."""
        files, before = origin.source.files, record.loaded
        with _recorded(record, f"'{files.key}' version {number}"):
            known, labels, is_known = await self._loader.describe(files, origin.message, number)
            config = freeze(known)
        dormant = DormantVersion(
            config,
            number,
            partial(self.on_wake, files.key),
            timeout=self._settings.demand_load_timeout,
            is_known=is_known,
            metadata=with_labels(metadata_of(config, number), labels),
            totals=None if before is None else before.totals,
        )
        dormant.totals.namespace = files.namespace
        self._install(record, before, dormant, origin)

    async def _load_version(self, record: VersionRecord, number: int, origin: _Origin) -> None:
        files, before = origin.source.files, record.loaded
        started = clock.monotonic()
        with _recorded(record, f"'{files.key}' version {number}"):
            logger.info("loading: %s:%d", files.key, number)
            if isinstance(before, ModelVersion) and await self._change_instances(before, origin):
                logger.info("successfully loaded '%s' in %.2f s", files.key, clock.monotonic() - started)
                return
            loaded = await self._try_to_load(files, origin.message, number)
            try:
                around = await blocking.run(version_signature, origin.signature, loaded)
            except BaseException:  # such as the end of the server: nothing else knows its guests yet
                await self._end(loaded)
                raise
        logger.info("successfully loaded '%s' in %.2f s", files.key, clock.monotonic() - started)
        loaded.totals.namespace = files.namespace
        loaded.totals.load_ns = int((clock.monotonic() - started) * 1e9)
        loaded.totals.measure(self._settings.metrics, loaded.config)
        if self._settings.counts_latencies:
            loaded.totals.count_latencies(loaded.config)
        if isinstance(before, DormantVersion):
            loaded.totals.continue_from(before.totals)
        if self._cache is not None and loaded.config.message.response_cache.enable:
            loaded.keep_responses(self._cache)
        self._install(record, before, loaded, replace(origin, signature=around))
        if isinstance(loaded, ModelVersion):
            loaded.on_instance_lost = self._services.calls.on_call_waiting
            self.on_loaded(files.key, loaded)

    def _install(
        self, record: VersionRecord, before: ServedVersion | None, loaded: ServedVersion, origin: _Origin
    ) -> None:
        """Let *loaded* serve, in place of *before* if there is one."""
        key = origin.source.files.key
        assert record.loaded is before, f"'{key}' was loaded or unloaded while it was being loaded"
        self._origins[loaded.number] = origin
        self._registry.versions_alive[loaded.number] = loaded
        if before is None:
            record.become(ModelState.READY, loaded=loaded)
        else:
            self._replace(key, record, before, loaded)
        self._registry.changed(key)  # before the old version stops, so that no further request reaches it
        if isinstance(before, DormantVersion):
            before.submit_waiting(loaded)

    async def scale(self, key: str, loaded: ModelVersion, count: int) -> None:
        """Change a version's number of instances; instances in use are not removed.

        If one cannot be started, the instances stay as they were.
        """
        load = loaded.instance_load()
        count = max(count, load.count - load.removable)  # an instance may have got a request since that was decided
        if count == load.count or loaded.number not in self._registry.versions_alive:
            return
        config = freeze(with_count(loaded.config.message, count))
        await loaded.change_instances(config, *specs_with(loaded, config))
        self._registry.changed(key)
        self._in_background(key, loaded.end_removed(self._settings.exit_timeout))

    async def _change_instances(self, loaded: ModelVersion, origin: _Origin) -> bool:
        """Add and remove instances of a version, if nothing else has changed; whether that was so.

        If one cannot be started, the instances stay as they were.
        """
        before, files = self._origins.get(loaded.number), origin.source.files
        if before is None or before.source.files.directory != files.directory:
            return False
        now = await blocking.run(version_signature, origin.signature, loaded)
        path = config_path(files, self._settings.config_name).relative_to(files.directory)
        if has_other_changes(before.signature, now, str(path), loaded.version):
            return False
        changed = changed_instances(loaded, before.message, origin.message)
        if changed is None:
            return False
        if changed.message == loaded.config.message:
            logger.info("instances of '%s' version %d: all stay", files.key, loaded.version)
            self._origins[loaded.number] = replace(origin, signature=now)
            return True
        await loaded.change_instances(changed, *specs_with(loaded, changed))
        self._origins[loaded.number] = replace(origin, signature=now)
        self._registry.changed(files.key)
        self._in_background(files.key, loaded.end_removed(self._settings.exit_timeout), replaced=loaded)
        return True

    async def _try_to_load(
        self, files: ModelFiles, message: pb.ModelConfig, number: int
    ) -> ModelVersion | EnsembleVersion:
        if message.HasField("ensemble_scheduling"):
            made = make_ensemble(message, number, self._registry, self._services)
            await self._loader.start_ensemble(files, made)
            return made
        model = self._registry.record(files.key)

        def note_step(step: str) -> None:
            model.step = step

        load = partial(
            self._loader.load,
            files,
            message,
            number,
            self._services,
            is_on_demand=model.is_on_demand,
            on_step=note_step,
        )
        for attempt in range(self._settings.load_retries):
            try:
                return await load()
            except NaiadError as error:
                logger.warning("loading '%s' failed (attempt %d): %s", files.key, attempt + 1, error.message)
        return await load()


@contextlib.contextmanager
def _recorded(record: VersionRecord, what: str) -> Iterator[None]:
    """Note in the log and, if nothing serves meanwhile, in the record that a version is being loaded, or has failed."""
    is_new = record.loaded is None
    if is_new:
        record.become(ModelState.LOADING)
    try:
        yield
    except NaiadError as error:
        reason = f"{error.code.value}: {error.message}"
        logger.error("failed to load %s: %s", what, reason)  # noqa: TRY400 - the model's error, not the server's
        if isinstance(error, ModelError) and error.traceback_text:
            logger.error("%s", error.traceback_text)  # noqa: TRY400 - the model's error, not the server's
        if is_new:
            record.become(ModelState.UNAVAILABLE, reason)
        raise
    except BaseException as error:
        if is_new:
            why = "the load was cancelled" if isinstance(error, asyncio.CancelledError) else repr(error)
            record.become(ModelState.UNAVAILABLE, f"{Code.INTERNAL.value}: {why}")
        raise


def is_loaded(model: ModelRecord) -> bool:
    """Whether a version of a model has guests."""
    return any(isinstance(version, ModelVersion) for version in model.serving())


def _ignore_wake(key: str, *, is_urgent: bool) -> None:
    """Take the place of a callback until one is set."""
