"""Loads, reloads and unloads single models; `load_order` decides which ones and in which order.

A load (`ModelLoads.load`) is one preparation (`Preparation.prepare`), which blocks and runs once on its own thread, and
one start on the event loop's thread.

A reload never interrupts service. The new version is loaded beside the old one and replaces it in the registry in one
step; only then the old one finishes its requests and ends. If loading fails, the old one stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from naiad.config.model.model_config import freeze
from naiad.config.model.scaling import with_count
from naiad.core import blocking, clock
from naiad.core.errors import Code, ConfigError, InvalidRequestError, ModelError, NaiadError, fresh, without_frames
from naiad.engine.calls.services import ModelServices
from naiad.engine.ensembles.build import checked_ensemble, find_key, find_members, make_ensemble, needed_models
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.lifecycle.states import UNLOADED
from naiad.engine.loading.instance_change import changed_instances, may_change, specs_with
from naiad.engine.loading.loader import Loader, PreparedDormant, PreparedVersion
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.loading.preparation import FETCHING, LOAD_AFTER, LoadOrigin, Preparation, PreparedParts
from naiad.engine.loading.unchanged import is_whole
from naiad.engine.registry import ModelRecord, Registry, VersionRecord
from naiad.engine.response_cache import ResponseCache
from naiad.engine.served import LoadedVersion, SequenceOwner, ServedVersion, Target, metadata_of
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.serving.handover import Handover
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.models.polling import Signature
from naiad.models.repository.layout import ModelFiles, models_named
from naiad.protocol.metadata import ModelState, with_labels

logger = logging.getLogger("naiad.engine")

_FINISH_SECONDS = 0.05  # how often to check whether the last sequence of a replaced version has ended

# How long a load waits for requests in flight of what it replaced. They may take any time; `finalize` is awaited.
_REQUEST_SECONDS = 0.5


class OnWakeModel(Protocol):
    """Called when a request needs a dormant model (see `naiad.engine.serving.dormant.OnWake`)."""

    def __call__(self, key: str, *, is_urgent: bool) -> None: ...


class LoadOutcome(NamedTuple):
    """What a load has done."""

    is_loaded: bool  # whether the model was loaded; False also if it has not changed since it was
    needs: frozenset[str] = frozenset()
    models: Mapping[str, ModelFiles] = {}  # the models of the repositories then, by key


class ModelLoads:
    """Adds versions of models to the registry and removes them; models are identified by their keys."""

    def __init__(
        self,
        settings: EngineSettings,
        loader: Loader,
        registry: Registry,
        services: ModelServices,
        cache: ResponseCache | None = None,
    ) -> None:
        self.ensembles: dict[str, ModelSource] = {}
        self.needs: dict[str, frozenset[str]] = {}  # the members of each of them
        # The models that each model names as those to load before it, because it calls them (LOAD_AFTER).
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
        self._origins: dict[int, LoadOrigin] = {}  # by number of the load: keeps temporary files until it ends
        self._replaced: dict[asyncio.Task[None], LoadedVersion] = {}  # what was replaced by a load and ends now

    async def wait_unloaded(self) -> None:
        await asyncio.gather(*self._unloads, return_exceptions=True)

    async def wait_replaced(self, key: str) -> bool:
        """Wait for `finalize` of what was replaced, but not for requests in flight; whether some of it still ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REQUEST_SECONDS
        while ending := [task for task in self._replaced if self._unloads.get(task) == key]:
            if loop.time() >= deadline and any(self._replaced[task].is_finishing_requests() for task in ending):
                logger.info("'%s': replaced instances still have requests in flight, and end after these", key)
                return True
            await asyncio.wait(ending, timeout=_FINISH_SECONDS)
        return False

    def end_blocked_load(self, name: str) -> None:
        """End a load in progress of a model if it waits for something that may never come, such as a build."""
        slot = self._loading.get(name)
        if slot is not None:
            slot.end_when_lent()

    def unload(self, name: str) -> list[asyncio.Task[None]]:
        """Start to unload all versions of a model; tasks that end when these, and replaced ones, are stopped."""
        model = self._registry.known(name)
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

    async def load(
        self,
        source: ModelSource,
        *,
        is_nested: bool = False,
        is_waking: bool = False,
        is_first: bool = False,
        is_compared: bool = False,
        models: Mapping[str, ModelFiles] | None = None,
    ) -> LoadOutcome:
        """Load the versions that the version policy selects. Those of a model on demand only become dormant.

        If a version fails, what served before continues to.

        Args:
            is_nested: Do not wait for a free slot among the loads.
            is_first: Fetch its files; if it names models to load before it, note them, and load nothing.
            is_compared: Load nothing if it serves and its files have not changed since it was loaded.
            models: The models of the repositories; None if they have to be listed to know which models it names.
        """
        key = source.files.key
        model = self._registry.record(key)
        serving = {number: each.loaded for number, each in model.versions.items() if each.loaded is not None}
        preparation = Preparation(
            settings=self._settings,
            loader=self._loader,
            source=source,
            model=model,
            is_first=is_first,
            models=models,
            before=self._signature_of(model) if is_compared and source.override is None else None,
            serving=serving,
            origins={
                number: self._origins[each.number]
                for number, each in serving.items()
                if isinstance(each, ModelVersion) and may_change(each)
            },
            may_sleep=not is_waking and not is_loaded(model),
        )
        slot = self._loading[key] = blocking.LendableSlot(None if is_nested else self._slots)
        model.step, then = "waiting for other loads", ""
        try:
            async with slot:
                await self._prepare(preparation)
                if preparation.is_unchanged:
                    logger.info("'%s' is loaded and has not changed since", key)
                    return LoadOutcome(is_loaded=False)
                if is_first and (needs := self._note_needs(preparation)):
                    then = "waiting for other models"
                    return LoadOutcome(is_loaded=False, needs=needs, models=preparation.models or {})
                await self._start(preparation)
        except BaseException as error:
            why = "the load was cancelled" if isinstance(error, asyncio.CancelledError) else repr(error)
            for record in map(model.versions.__getitem__, preparation.begun):
                if record.state is ModelState.LOADING:
                    record.become(ModelState.UNAVAILABLE, f"{Code.INTERNAL.value}: {why}")
            raise
        finally:
            model.step = then
        return LoadOutcome(is_loaded=True)

    async def _prepare(self, preparation: Preparation) -> None:
        model = preparation.model
        try:
            await blocking.run(preparation.prepare)
        except NaiadError as error:
            if preparation.begun:  # it was ended by an unload: the versions that it had not reached have the error
                for number in preparation.numbers:
                    preparation.versions.setdefault(number, without_frames(error))
                return
            if preparation.step != FETCHING or not model.serving():
                model.reason = error.message
            logger.error("failed to load '%s': %s", model.key, error.message)  # noqa: TRY400 - the model's error, not the server's
            raise ConfigError(f"failed to load '{model.key}': {error.message}", code=error.code) from error

    def _signature_of(self, model: ModelRecord) -> Signature | None:
        if not is_whole(model) or not all(map(self._registry.is_serving, self.after.get(model.key, ()))):
            return None
        signature: dict[str, tuple[object, ...]] = {}
        for version in model.serving():
            origin = self._origins[version.number]
            if not isinstance(version, ModelVersion) or origin.source.override or origin.signature is None:
                return None  # an ensemble is cheap to load, and its members may have changed
            signature.update(origin.signature)
        return signature

    def _note_needs(self, preparation: Preparation) -> frozenset[str]:
        files, message, models = preparation.source.files, preparation.message, preparation.models or {}

        def keys_of(name: str) -> set[str]:
            return {each.key for each in models_named(name, models)} | set(self._registry.keys_of(name))

        self.needs.pop(files.key, None)
        self.after.pop(files.key, None)
        if not preparation.needs_others:
            return frozenset()
        if message.HasField("ensemble_scheduling"):
            find_members(message, files.namespace, keys_of)
            found = self.needs[files.key] = needed_models(message)
            return found
        names = message.parameters[LOAD_AFTER].string_value.replace(",", " ").split()
        found = self.after[files.key] = frozenset(find_key(name, files.namespace, keys_of) for name in names)
        return found

    async def _start(self, preparation: Preparation) -> None:
        """Start the versions of a model; raises InvalidRequestError with the errors of those that failed."""
        model, key = preparation.model, preparation.model.key
        model.reason = ""
        model.is_on_demand = preparation.is_on_demand
        self.ensembles.pop(key, None)
        self.needs.pop(key, None)
        if preparation.message.HasField("ensemble_scheduling"):
            self._check_ensemble(preparation)
        reasons = ""
        for number in preparation.numbers:
            try:
                await self._start_version(preparation, number)
            except NaiadError as error:
                reason = f"{error.code.value}: {error.message}"
                logger.error("failed to load '%s' version %d: %s", key, number, reason)  # noqa: TRY400 - the model's error, not the server's
                if isinstance(error, ModelError) and error.traceback_text:
                    logger.error("%s", error.traceback_text)  # noqa: TRY400 - the model's error, not the server's
                if model.versions[number].loaded is None:
                    model.versions[number].become(ModelState.UNAVAILABLE, reason)
                reasons += f"version {number} is at UNAVAILABLE state: {reason};\n"
        if reasons:
            raise InvalidRequestError(f"load failed for model '{key}': {reasons}")
        for number in set(model.versions) - set(preparation.selected):  # no longer selected by the policy
            self._begin_unload(key, model.versions[number])

    def _check_ensemble(self, preparation: Preparation) -> None:
        source, message, key = preparation.source, preparation.message, preparation.model.key
        self.ensembles[key] = source
        find_members(message, source.files.namespace, self._registry.keys_of)
        self.needs[key] = needed_models(message)
        try:
            preparation.message = checked_ensemble(message, key, self._registry, self.needs)
        except NaiadError as error:
            preparation.model.reason = error.message
            logger.error("%s", error.message)  # noqa: TRY400 - the model's error, not the server's
            raise InvalidRequestError(f"load failed for model '{key}': {error.message}\n", code=error.code) from error

    async def _start_version(self, preparation: Preparation, number: int) -> None:
        model, source, started = preparation.model, preparation.source, clock.monotonic()
        if number not in preparation.begun:
            preparation.begin(number)
        record = model.versions[number]
        before, ready = record.loaded, preparation.versions.get(number)
        loaded: ServedVersion
        if isinstance(ready, PreparedParts) and isinstance(before, ModelVersion) and ready.prepared is None:
            origin = LoadOrigin(source=source, message=preparation.message, signature=ready.signature)
            if await self._change_instances(before, origin):
                logger.info("successfully loaded '%s' in %.2f s", model.key, clock.monotonic() - started)
                return
            ready = await self._find_again(preparation, number)
        if preparation.message.HasField("ensemble_scheduling"):
            loaded = made = make_ensemble(preparation.message, number, self._registry, self._services)
            await self._loader.start_ensemble(source.files, made)
        elif isinstance(ready, PreparedParts) and isinstance(ready.prepared, PreparedDormant):
            loaded = await self._dormant(ready.prepared, number, before)
        else:
            loaded, ready = await self._start_guests(preparation, number, ready)
        signature = ready.signature if isinstance(ready, PreparedParts) else None
        if not isinstance(loaded, DormantVersion):
            seconds = clock.monotonic() - started
            if isinstance(ready, PreparedParts) and isinstance(ready.prepared, PreparedVersion):
                seconds += ready.prepared.seconds
            self._begin_counting(loaded, seconds, before)
            logger.info("successfully loaded '%s' in %.2f s", model.key, seconds)
        loaded.totals.namespace = source.files.namespace
        self._install(
            record, before, loaded, LoadOrigin(source=source, message=preparation.message, signature=signature)
        )
        if isinstance(loaded, ModelVersion):
            loaded.on_instance_lost = self._services.calls.on_call_waiting
            self.on_loaded(model.key, loaded)

    def _begin_counting(
        self, loaded: ModelVersion | EnsembleVersion, seconds: float, before: ServedVersion | None
    ) -> None:
        """Have what a version does measured and kept, as the settings say; its load took *seconds*."""
        loaded.totals.load_ns = int(seconds * 1e9)
        loaded.totals.measure(self._settings.metrics, loaded.config)
        if self._settings.counts_latencies:
            loaded.totals.count_latencies(loaded.config)
        if isinstance(before, DormantVersion):
            loaded.totals.continue_from(before.totals)
        if self._cache is not None and loaded.config.message.response_cache.enable:
            loaded.keep_responses(self._cache)

    async def _start_guests(
        self, preparation: Preparation, number: int, ready: PreparedParts | NaiadError | None
    ) -> tuple[ModelVersion, PreparedParts]:
        """A version whose guests have started; if it fails, it is prepared and started again as often as it may be."""
        model, attempt = preparation.model, 0
        while True:
            attempt += 1
            try:
                if ready is None:
                    ready = await self._find_again(preparation, number)
                if isinstance(ready, NaiadError):
                    raise fresh(ready)
                assert isinstance(ready.prepared, PreparedVersion)
                on_demand, note = model.is_on_demand, preparation.note_step
                started = self._loader.start(ready.prepared, self._services, is_on_demand=on_demand, on_step=note)
                return await started, ready
            except NaiadError as error:
                if attempt > self._settings.load_retries or preparation.is_dormant:
                    raise
                logger.warning("loading '%s' failed (attempt %d): %s", model.key, attempt, error.message)
                ready = None

    async def _find_again(self, preparation: Preparation, number: int) -> PreparedParts:
        return await blocking.run(preparation.find_version, number, changes_instances=False)

    async def _dormant(self, prepared: PreparedDormant, number: int, before: ServedVersion | None) -> DormantVersion:
        files = prepared.files
        known, labels, is_known = await self._loader.describe(prepared)
        config = freeze(known)
        return DormantVersion(
            config,
            number,
            partial(self.on_wake, files.key),
            timeout=self._settings.demand_load_timeout,
            is_known=is_known,
            metadata=with_labels(metadata_of(config, number), labels),
            totals=None if before is None else before.totals,
        )

    def release_prewarmed(self) -> None:
        self._loader.release_prewarmed()

    def _install(
        self, record: VersionRecord, before: ServedVersion | None, loaded: ServedVersion, origin: LoadOrigin
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

    async def _change_instances(self, loaded: ModelVersion, origin: LoadOrigin) -> bool:
        """Add and remove instances of a version, of which nothing else has changed; whether that was possible.

        If one cannot be started, the instances stay as they were.
        """
        files = origin.source.files
        changed = changed_instances(loaded, origin.message)
        if changed is None:
            return False
        if changed.message == loaded.config.message:
            logger.info("instances of '%s' version %d: all stay", files.key, loaded.version)
            self._origins[loaded.number] = origin
            return True
        await loaded.change_instances(changed, *specs_with(loaded, changed))
        self._origins[loaded.number] = origin
        self._registry.changed(files.key)
        self._in_background(files.key, loaded.end_removed(self._settings.exit_timeout), replaced=loaded)
        return True


def is_loaded(model: ModelRecord) -> bool:
    """Whether a version of a model has guests."""
    return any(isinstance(version, ModelVersion) for version in model.serving())


def _ignore_wake(key: str, *, is_urgent: bool) -> None:
    """Take the place of a callback until one is set."""
