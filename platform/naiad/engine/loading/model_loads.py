"""Loads, reloads and unloads single models; `load_order` decides which ones and in which order.

A reload never interrupts service. The new version is loaded beside the old one and replaces it in the registry in one
step; only then the old one finishes its requests and ends. If loading fails, the old one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from typing import Any

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze_version_policy
from naiad.engine.calls.services import ModelServices
from naiad.engine.ensembles.build import checked_ensemble, find_members, make_ensemble, needed_models
from naiad.engine.loading.loader import Loader
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.loading.unchanged import is_whole, look_around
from naiad.engine.registry import ModelRecord, Registry, VersionRecord
from naiad.engine.response_cache import ResponseCache
from naiad.engine.served import ServedVersion
from naiad.engine.serving.handover import Handover, newest
from naiad.engine.settings import EngineSettings
from naiad.errors import Code, ConfigError, InvalidRequestError, ModelError, NaiadError
from naiad.lifecycle.polling import Signature
from naiad.lifecycle.states import UNLOADED
from naiad.protocol.metadata import ModelState
from naiad.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.repository.repositories import directory_signature

logger = logging.getLogger("naiad.engine")

_FINISH_SECONDS = 0.05
"""How often to check whether the last sequence of a replaced version has ended."""


class ModelLoads:
    """Adds versions of models to the registry and removes them; models are identified by their keys.

    Attributes:
        ensembles: The source of each loaded ensemble.
        needs: The members of each of them.
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
        self._settings = settings
        self._loader = loader
        self._registry = registry
        self._services = services
        self._cache = cache
        self._slots = asyncio.Semaphore(settings.load_threads)
        self._unloads: dict[asyncio.Task[None], str] = {}  # versions being stopped, with their model
        self._looks: dict[str, Signature | None] = {}  # signatures of models' files when they were loaded
        self._sources: dict[int, ModelSource] = {}  # by number of the load: keeps temporary files until it ends

    def read_config(self, source: ModelSource) -> pb.ModelConfig:
        """The configuration of a model, before the model completes it; blocks.

        Raises:
            ConfigError: If it is missing, malformed or invalid.
        """
        return source.read_config(strict=self._settings.strict_config, config_name=self._settings.config_name)

    async def is_unchanged(self, source: ModelSource) -> bool:
        """Whether all serving versions of the model were loaded from its present files: a load has nothing to do."""
        key = source.files.key
        model, before = self._registry.known(key), self._looks.get(key)
        if source.override is not None or model is None or before is None or not is_whole(model):
            return False
        own = await asyncio.to_thread(directory_signature, source.files.directory)
        return await asyncio.to_thread(look_around, own, model) == before

    async def wait_unloaded(self) -> None:
        """Wait until all versions being unloaded are stopped."""
        await asyncio.gather(*self._unloads, return_exceptions=True)

    def unload(self, name: str) -> list[asyncio.Task[None]]:
        """Start to unload all versions of a model; tasks that end when these, and replaced ones, are stopped."""
        model = self._registry.known(name)
        self._looks.pop(name, None)
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

    def _in_background(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._unloads[task] = name
        task.add_done_callback(self._unloads.pop)

    def _replace(self, key: str, record: VersionRecord, before: ServedVersion, loaded: ServedVersion) -> None:
        """Let *loaded* serve in place of *before*, which finishes its requests and sequences."""
        if not before.finish_sequences():
            record.loaded = loaded
            self._in_background(key, self._end(before))
            return
        record.loaded = handover = Handover(before, loaded)
        self._registry.by_number[handover.number] = handover
        self._in_background(key, self._hand_over(key, record, newest(before)))

    async def _hand_over(self, key: str, record: VersionRecord, old: ServedVersion) -> None:
        """Wait for the sequences of an old version, at most for the exit timeout, then stop it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.exit_timeout
        while old.finish_sequences() and loop.time() < deadline:
            now = record.loaded  # another handover, if the model was reloaded again
            if not isinstance(now, Handover) or now.is_over or old not in now.olds:
                break
            await asyncio.sleep(_FINISH_SECONDS)
        now = record.loaded
        if isinstance(now, Handover) and old in now.olds:
            now.olds.remove(old)
            if not now.olds:
                record.loaded = now.new
                self._registry.changed(key)
        await self._end(old)

    async def _end(self, version: ServedVersion) -> None:
        if isinstance(version, Handover):
            version.give_up()
            version = version.new
        await version.stop(self._settings.exit_timeout)
        by_number = self._registry.by_number
        # Tickets of requests that came through a handover refer to it: it stays until its new version ends.
        for number in [number for number, each in by_number.items() if newest(each) is version]:
            del by_number[number]
        if self._cache is not None:
            self._cache.forget(version.number)
        self._sources.pop(version.number, None)

    async def _unload(self, key: str, record: VersionRecord, loaded: ServedVersion) -> None:
        await self._end(loaded)
        if record.leaving is loaded and record.state is ModelState.UNLOADING:  # else it was loaded again meanwhile
            record.become(ModelState.UNAVAILABLE, UNLOADED)
        logger.info("successfully unloaded '%s' version %d", key, loaded.version)

    async def load(self, source: ModelSource, *, is_nested: bool = False) -> None:
        """Load the versions that the version policy selects.

        Raises:
            NaiadError: If one of them fails; what served before continues to.
        """
        key = source.files.key
        model = self._registry.record(key)
        self._looks.pop(key, None)
        async with contextlib.nullcontext() if is_nested else self._slots:
            look = await self._look(source)  # before reading them: a later change must lead to another load
            message, numbers = await self._prepare(source, model)
            model.reason = ""
            failures = []
            for number in numbers:
                try:
                    if number in source.kept and number in model.versions and model.versions[number].loaded is not None:
                        continue
                    record = model.versions.setdefault(number, VersionRecord())
                    await self._load_version(record, source, message, number)
                except NaiadError as error:
                    failures.append((number, error))
            if not failures:
                for number in set(model.versions) - set(numbers):  # no longer selected by the policy
                    self._begin_unload(key, model.versions[number])
        if failures:
            reasons = "".join(
                f"version {number} is at UNAVAILABLE state: {error.code.value}: {error.message};\n"
                for number, error in failures
            )
            raise InvalidRequestError(f"load failed for model '{key}': {reasons}")
        self._looks[key] = await asyncio.to_thread(look_around, look, model)

    async def _look(self, source: ModelSource) -> Signature | None:
        """The signature of a model's files; None unless a later load may skip them as unchanged."""
        is_ensemble = source.files.key in self.needs  # its members may have changed, and loading it is cheap
        if not self._settings.is_explicit or source.override is not None or is_ensemble:
            return None
        return await asyncio.to_thread(directory_signature, source.files.directory)

    async def _prepare(self, source: ModelSource, model: ModelRecord) -> tuple[pb.ModelConfig, tuple[int, ...]]:
        """The configuration of a model, and the versions to load."""
        files, key = source.files, source.files.key
        try:
            message = await asyncio.to_thread(self.read_config, source)
            policy = freeze_version_policy(message.version_policy)
            numbers = versions_to_load(policy, available_versions(files), files.name)
        except NaiadError as error:
            model.reason = error.message
            logger.error("failed to load '%s': %s", key, error.message)  # noqa: TRY400 - the model's error, not the server's
            raise ConfigError(f"failed to load '{key}': {error.message}", code=error.code) from error
        if not message.HasField("ensemble_scheduling"):
            self.ensembles.pop(key, None)
            self.needs.pop(key, None)
            return message, numbers
        self.ensembles[key] = source
        find_members(message, files.namespace, self._registry.keys_of)
        self.needs[key] = needed_models(message)
        try:
            return checked_ensemble(message, key, self._registry, self.needs), numbers
        except NaiadError as error:
            model.reason = error.message
            logger.error("%s", error.message)  # noqa: TRY400 - the model's error, not the server's
            raise InvalidRequestError(f"load failed for model '{key}': {error.message}\n", code=error.code) from error

    async def _load_version(
        self, record: VersionRecord, source: ModelSource, message: pb.ModelConfig, number: int
    ) -> None:
        files, before = source.files, record.loaded
        if before is None:
            record.become(ModelState.LOADING)
        started = time.monotonic()
        logger.info("loading: %s:%d", files.key, number)
        try:
            loaded = await self._try_to_load(files, message, number)
        except NaiadError as error:
            reason = f"{error.code.value}: {error.message}"
            logger.error("failed to load '%s' version %d: %s", files.key, number, reason)  # noqa: TRY400 - the model's error, not the server's
            if isinstance(error, ModelError) and error.traceback_text:
                logger.error("%s", error.traceback_text)  # noqa: TRY400 - the model's error, not the server's
            if before is None:
                record.become(ModelState.UNAVAILABLE, reason)
            raise
        except BaseException as error:
            if before is None:
                record.become(ModelState.UNAVAILABLE, f"{Code.INTERNAL.value}: {error!r}")
            raise
        logger.info("successfully loaded '%s' in %.2f s", files.key, time.monotonic() - started)
        loaded.totals.namespace = files.namespace
        loaded.totals.load_ns = int((time.monotonic() - started) * 1e9)
        loaded.totals.measure(self._settings.metrics, loaded.config)
        if self._cache is not None and loaded.config.message.response_cache.enable:
            loaded.keep_responses(self._cache)
        self._registry.by_number[loaded.number] = loaded
        self._sources[loaded.number] = source
        if before is None:
            record.become(ModelState.READY, loaded=loaded)
        else:
            self._replace(files.key, record, before, loaded)
        self._registry.changed(files.key)  # before the old version stops, so that no further request reaches it

    async def _try_to_load(self, files: ModelFiles, message: pb.ModelConfig, number: int) -> ServedVersion:
        if message.HasField("ensemble_scheduling"):
            return make_ensemble(message, number, self._registry, self._services)
        for attempt in range(self._settings.load_retries):
            try:
                return await self._loader.load(files, message, number, self._services)
            except NaiadError as error:
                logger.warning("loading '%s' failed (attempt %d): %s", files.key, attempt + 1, error.message)
        return await self._loader.load(files, message, number, self._services)
