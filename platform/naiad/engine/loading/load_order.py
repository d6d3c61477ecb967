"""The order in which models are loaded and unloaded, given that ensembles depend on their members.

The rules are the reference's:

- Loading an ensemble also loads those of its members that are not loaded yet.
- Unloading a model suspends the ensembles that depend on it; loading it again loads them again.
- Unloading an ensemble unloads, if the client asks for that, the members that were loaded only because of it.

Requests in flight are not lost: an ensemble ends before its members.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from naiad.config.model import model_config_pb2 as pb
from naiad.core import blocking
from naiad.core.errors import InvalidRequestError, NaiadError, NotReadyError, fresh, without_frames
from naiad.engine.ensembles.build import find_key, find_members, needed_models
from naiad.engine.lifecycle.dependencies import all_dependencies, dependents, load_waves
from naiad.engine.loading.model_loads import ModelLoads
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.registry import Registry
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.models.repository.layout import ModelFiles, models_named
from naiad.models.repository.read import config_path

logger = logging.getLogger("naiad.engine")

_AFTER = "LOAD_AFTER"
"""The configuration parameter that names models to load before this one, because it calls them."""

_MARKS = (b"ensemble_scheduling", _AFTER.encode())


class LoadOrder:
    """Loads and unloads models, identified by their keys, together with their dependencies and dependents."""

    def __init__(self, settings: EngineSettings, loads: ModelLoads, registry: Registry) -> None:
        self._settings = settings
        self._loads = loads
        self._registry = registry
        # Weak, because clients may name models that do not exist: a lock stays while somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._requested: set[str] = set()  # models that were loaded because they were requested, not as a member
        self._suspended: set[str] = set()  # ensembles that were unloaded because a member was
        self._changes: set[asyncio.Task[None]] = set()  # loads and unloads in progress
        self._ending = asyncio.Event()  # set when the server stops

    # -- loading ------------------------------------------------------------------------------------------------

    async def load_all(
        self, sources: Mapping[str, ModelSource], models: Mapping[str, ModelFiles]
    ) -> Mapping[str, BaseException | None]:
        """Load models at the start, and their dependencies out of *models*; the outcome of each of *sources*."""
        self._requested.update(sources)
        all_sources = dict(sources)
        try:
            self._note_step(sources, "fetching its files")
            outcomes = dict(await self._add_needed(all_sources, models))
            self._note_step(all_sources, "waiting for other models")
            outcomes.update(await self._load_in_waves(all_sources))
        finally:
            self._note_step({**sources, **all_sources}, "")
        return {key: outcomes[key] for key in sources}

    def _note_step(self, keys: Iterable[str], step: str) -> None:
        for key in keys:
            self._registry.record(key).step = step

    async def load(self, sources: Sequence[ModelSource], *, is_nested: bool = False) -> bool:
        """Load or reload models; before them their missing dependencies, after them the ensembles depending on them.

        A model whose files have not changed since it was loaded is left as it is.

        Returns:
            Whether instances that were replaced are still ending (see `ModelLoads.wait_replaced`).
        """
        self._requested.update(source.files.key for source in sources)
        asked = {source.files.key: source for source in sources if not await self._is_unchanged(source)}
        outcomes = await self._load_with_dependencies(asked, None, is_nested=is_nested)
        errors = [error for key in asked if (error := outcomes[key]) is not None]
        if len(errors) > 1 and all(isinstance(error, NaiadError) for error in errors):
            raise InvalidRequestError("".join(str(error) for error in errors))
        if errors:
            raise fresh(errors[0])
        return any([await self._loads.wait_replaced(key) for key in asked])

    async def _is_unchanged(self, source: ModelSource) -> bool:
        key = source.files.key
        async with self._lock(key):  # wait for a load in progress
            try:
                unchanged = await self._loads.is_unchanged(source)
            except NaiadError:
                return False  # loading it reports the error
        if unchanged := unchanged and all(self._registry.is_serving(need) for need in self._loads.after.get(key, ())):
            logger.info("'%s' is loaded and has not changed since", key)
        return unchanged

    async def update(
        self, sources: Mapping[str, ModelSource], removed: Collection[str]
    ) -> Mapping[str, BaseException | None]:
        """Load and reload changed models, then unload removed ones: an ensemble may have changed to do without them.

        Returns:
            The outcome of each model to load, and of the ensembles that were reloaded because of it.
        """
        outcomes = await self._load_with_dependencies(sources, {})
        for key in removed:
            await self.unload(key, with_members=False)
            self._registry.forget_failures(key)
        return outcomes

    async def _load_with_dependencies(
        self, sources: Mapping[str, ModelSource], models: Mapping[str, ModelFiles] | None, *, is_nested: bool = False
    ) -> Mapping[str, BaseException | None]:
        self._requested.update(sources)
        all_sources = dict(sources)
        outcomes = dict(await self._add_needed(all_sources, models))
        outcomes.update(await self._load_in_waves(all_sources, is_nested=is_nested))
        loaded = [key for key, error in outcomes.items() if error is None]
        return {**outcomes, **await self._reload_dependents(loaded, is_nested=is_nested)}

    async def _add_needed(
        self, sources: dict[str, ModelSource], models: Mapping[str, ModelFiles] | None
    ) -> Mapping[str, BaseException | None]:
        """Add dependencies that are not loaded to *sources*, transitively; unknown ones are left out.

        Returns:
            The errors of models whose files cannot be fetched; these are removed from *sources*.
        """
        failures: dict[str, BaseException | None] = {}
        ahead = dict(sources)
        while ahead:
            found = await asyncio.gather(
                *(blocking.run(self._fetch, source) for source in ahead.values()), return_exceptions=True
            )
            ahead, looked_at = {}, ahead
            for key, message in zip(looked_at, found, strict=True):
                if isinstance(message, BaseException):
                    failures[key] = self._cannot_fetch(key, message)
                    del sources[key]
                    continue
                self._loads.needs.pop(key, None)
                self._loads.after.pop(key, None)
                if message is not None:
                    if models is None:
                        models = (await blocking.run(self._settings.repositories.scan)).models
                    ahead.update(
                        (need, ModelSource(files=models[need]))
                        for need in sorted(self._note_needs(message, sources[key].files, models) - sources.keys())
                        if need in models and not self._registry.is_serving(need)
                    )
            sources.update(ahead)
        return failures

    def _fetch(self, source: ModelSource) -> pb.ModelConfig | None:
        """Fetch a model's files; its configuration if it may name other models, else None. Blocks.

        A configuration that cannot be read counts as naming none: loading it reports the error.
        """
        self._settings.repositories.fetch(source.files)
        try:
            path = config_path(source.files, self._settings.config_name)
            if source.override is None:
                text = path.read_bytes() if path.is_file() else b""
                if not any(mark in text for mark in _MARKS):
                    return None  # most models; their configuration is read only when they are loaded
            return self._loads.read_config(source)
        except (NaiadError, OSError):
            return None

    def _note_needs(
        self, message: pb.ModelConfig, files: ModelFiles, models: Mapping[str, ModelFiles]
    ) -> frozenset[str]:
        def keys_of(name: str) -> set[str]:
            return {each.key for each in models_named(name, models)} | set(self._registry.keys_of(name))

        if message.HasField("ensemble_scheduling"):
            find_members(message, files.namespace, keys_of)
            found = self._loads.needs[files.key] = needed_models(message)
            return found
        named = message.parameters[_AFTER].string_value if _AFTER in message.parameters else ""
        found = frozenset(find_key(name, files.namespace, keys_of) for name in named.replace(",", " ").split())
        if found:
            self._loads.after[files.key] = found
        return found

    def _cannot_fetch(self, key: str, error: BaseException) -> BaseException:
        if not isinstance(error, NaiadError):
            return error
        logger.error("failed to load '%s': %s", key, error.message)
        model = self._registry.record(key)
        if not self._registry.is_serving(key):
            model.reason = error.message
        return NaiadError(f"failed to load '{key}': {error.message}", code=error.code)

    async def _load_in_waves(
        self, sources: Mapping[str, ModelSource], *, is_nested: bool = False
    ) -> Mapping[str, BaseException | None]:
        outcomes: dict[str, BaseException | None] = {}
        for wave in load_waves(sources, {**self._loads.after, **self._loads.needs}):
            results = await asyncio.gather(
                *(self._load_one(sources[name], is_nested=is_nested) for name in wave), return_exceptions=True
            )
            outcomes.update(zip(wave, results, strict=True))
        return outcomes

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _run(self, change: Coroutine[Any, Any, None]) -> None:
        """Run a load or unload, which `end_loads` may cancel; NotReadyError if the server stops meanwhile."""
        if self._ending.is_set():
            change.close()
            raise NotReadyError("Server exiting")
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            await task
        except asyncio.CancelledError:
            if self._ending.is_set() and task.cancelled():
                raise NotReadyError("Server exiting") from None
            raise

    async def end_loads(self) -> None:
        """End the loads and unloads in progress, and reject further ones; what they have begun has ended then."""
        self._ending.set()
        changes = list(self._changes)
        if loading := sorted(key for key in self._locks if self.is_changing(key)):
            logger.info("Ending the loads and unloads in progress: %s", ", ".join(f"'{key}'" for key in loading))
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)

    async def _load_one(self, source: ModelSource, *, is_nested: bool) -> None:
        await self._run(self._load_locked(source, is_nested=is_nested))

    async def _load_locked(self, source: ModelSource, *, is_nested: bool, is_dependent: bool = False) -> None:
        """Load a model while nobody else changes it; unload it if that fails and it *is_dependent*."""
        key = source.files.key
        async with self._lock(key):
            try:
                await self._loads.load(source, is_nested=is_nested)
            except NaiadError:
                if is_dependent:
                    await _ended(self._loads.unload(key))
                if key in self._loads.ensembles and not self._registry.is_serving(key):
                    self._suspended.add(key)  # until what it needs has changed
                raise
            self._suspended.discard(key)

    async def wake(self, key: str) -> None:
        """Load a dormant model; see `ModelLoads.wake`. Ensembles stay as they are: they have no part in it."""
        async with self._lock(key):
            await self._loads.wake(key)

    async def scale(self, key: str, version: ModelVersion, count: int) -> None:
        async with self._lock(key):
            await self._loads.scale(key, version, count)

    def is_changing(self, key: str) -> bool:
        lock = self._locks.get(key)
        return lock is not None and lock.locked()

    async def _reload_dependents(self, names: Sequence[str], *, is_nested: bool) -> Mapping[str, BaseException | None]:
        """Reload the ensembles that depend on loaded models: whether they fit together may have changed."""
        needs = self._loads.needs
        affected = {ensemble for name in names for ensemble in dependents(name, needs)}.difference(names)
        if self._registry.is_namespaced:  # a name may refer to another namespace's model now, or be ambiguous
            plain = {self._registry.name_of(name) for name in names}
            affected |= {
                ensemble
                for ensemble, members in needs.items()
                if ensemble not in names and any(self._registry.name_of(member) in plain for member in members)
            }
        outcomes = {}
        for wave in load_waves(affected, needs):
            for ensemble in wave:
                if ensemble in self._suspended or self._registry.is_serving(ensemble):
                    outcomes[ensemble] = await self._reload_dependent(ensemble, is_nested=is_nested)
        return outcomes

    async def _reload_dependent(self, ensemble: str, *, is_nested: bool) -> NaiadError | None:
        source = self._loads.ensembles.get(ensemble)
        if source is None:  # it was unloaded meanwhile
            return None
        try:
            await self._run(self._load_locked(source, is_nested=is_nested, is_dependent=True))
        except NaiadError as error:  # it is logged; the requested load itself did not fail
            return without_frames(error)
        return None

    # -- unloading ----------------------------------------------------------------------------------------------

    async def unload(self, name: str, *, with_members: bool) -> None:
        """Start to unload a model.

        With *with_members*, also unload members of an ensemble that no other ensemble needs and no client requested.
        """
        await self._run(self._unload(name, with_members=with_members))

    def _affected(self, name: str, *, with_members: bool) -> set[str]:
        """The models that an unload may change."""
        needs = self._loads.needs
        return {name, *dependents(name, needs), *(all_dependencies(name, needs) if with_members else ())}

    @contextlib.asynccontextmanager
    async def _affected_locked(self, name: str, *, with_members: bool) -> AsyncIterator[None]:
        """Wait for the loads in progress of what an unload may change; nobody else changes it in this context.

        All locks are taken in one order, by name: two unloads would else wait for each other. A load takes one alone.
        """
        affected: set[str] = set()
        while True:
            async with contextlib.AsyncExitStack() as locks:
                for key in sorted(affected):
                    await locks.enter_async_context(self._lock(key))
                now = self._affected(name, with_members=with_members)
                if now <= affected:
                    yield
                    return
            affected |= now  # an ensemble that was being loaded names its members

    async def _unload(self, name: str, *, with_members: bool) -> None:
        self._loads.end_blocked_load(name)
        async with self._affected_locked(name, with_members=with_members):
            needs = dict(self._loads.needs)
            for ensemble in dependents(name, needs):
                if self._registry.is_serving(ensemble):
                    self._suspended.add(ensemble)
                    await _ended(self._loads.unload(ensemble))
            going = self._loads.unload(name)
            self._forget(name)
            if not with_members or name not in needs:  # only ensembles have members
                return
            await _ended(going)
            members = all_dependencies(name, needs)
            for wave in reversed(load_waves(members, needs)):
                for member in wave:
                    if member not in self._requested and not dependents(member, self._loads.needs):
                        going = self._loads.unload(member)
                        self._forget(member)
                        if member in needs:
                            await _ended(going)

    def forget_removed(self, stored: Collection[str]) -> None:
        """Forget the models that no repository has and that do not serve.

        They failed to load, were unloaded, or lost their folders: clients choose the names of models whose files they
        send, and each would stay for good.
        """
        for model in list(self._registry):
            if model.key not in stored and model.is_at_rest and not self.is_changing(model.key):
                self._forget(model.key)
                self._loads.after.pop(model.key, None)
                self._loads.forget(model.key)
                self._registry.forget(model.key)

    def _forget(self, name: str) -> None:
        self._requested.discard(name)
        self._suspended.discard(name)
        self._loads.needs.pop(name, None)
        self._loads.ensembles.pop(name, None)

    async def stop(self, timeout: float) -> None:
        """Stop all versions, ensembles before their members, within *timeout* seconds for all of them together."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._registry.end_handovers()
        versions = {model.key: model.serving() for model in self._registry}
        for wave in reversed(load_waves(versions, self._loads.needs)):
            remaining = max(deadline - loop.time(), 0)
            await asyncio.gather(*(version.stop(remaining) for name in wave for version in versions[name]))
        await self._loads.wait_unloaded()


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks, which continue if this is cancelled; each reports its own failure."""
    if waited := set(tasks):
        await asyncio.wait(waited)
