"""Which models are loaded and unloaded, and in which order, where ensembles need others.

As in the reference: loading an ensemble loads what it needs and is not loaded yet; a model that goes takes the
ensembles along that need it, and they come back with it; an ensemble that goes takes along, if asked to, what was
loaded for its sake alone. Requests under way lose nothing: ensembles end before what they need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from naiad.config.model import model_config_pb2 as pb
from naiad.engine.ensembles.build import find_key, find_members, needed_models
from naiad.engine.loading.model_loads import ModelLoads
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.registry import Registry
from naiad.engine.settings import EngineSettings
from naiad.errors import InvalidRequestError, NaiadError
from naiad.lifecycle.dependencies import all_dependencies, dependents, load_waves
from naiad.repository.layout import ModelFiles, models_named
from naiad.repository.read import config_path

logger = logging.getLogger("naiad.engine")

_AFTER = "LOAD_AFTER"
"""The parameter with which a model names others that it calls: they are loaded before it."""

_MARKS = (b"ensemble_scheduling", _AFTER.encode())


class LoadOrder:
    """Loads and unloads models, known by their keys, with those that they need and that need them."""

    def __init__(self, settings: EngineSettings, loads: ModelLoads, registry: Registry) -> None:
        self._settings = settings
        self._loads = loads
        self._registry = registry
        self._after: dict[str, frozenset[str]] = {}  # models that are loaded before others, which call them
        self._locks: dict[str, asyncio.Lock] = {}
        self._asked: set[str] = set()  # models that were loaded for their own sake
        self._suspended: set[str] = set()  # ensembles that went because something that they need did

    # -- loading ------------------------------------------------------------------------------------------------

    async def load_all(
        self, sources: Mapping[str, ModelSource], models: Mapping[str, ModelFiles]
    ) -> Mapping[str, BaseException | None]:
        """Load models at the start, and what they need of *models*; what became of each that was asked for."""
        self._asked.update(sources)
        everything = dict(sources)
        outcomes = dict(await self._add_needed(everything, models))
        outcomes.update(await self._load_in_waves(everything))
        return {key: outcomes[key] for key in sources}

    async def load(self, sources: Sequence[ModelSource], *, is_nested: bool = False) -> None:
        """Load or reload models, before them what they need and is not there, after them the ensembles that need them.

        Nothing is done about those that were loaded from what lies there still.

        Raises:
            NaiadError: If one of them cannot be loaded.
        """
        self._asked.update(source.files.key for source in sources)
        asked = {source.files.key: source for source in sources if not await self._is_unchanged(source)}
        outcomes = await self._load_anew(asked, None, is_nested=is_nested)
        errors = [error for key in asked if (error := outcomes[key]) is not None]
        if len(errors) > 1 and all(isinstance(error, NaiadError) for error in errors):
            raise InvalidRequestError("".join(str(error) for error in errors))
        if errors:
            raise errors[0]

    async def _is_unchanged(self, source: ModelSource) -> bool:
        key = source.files.key
        async with self._locks.setdefault(key, asyncio.Lock()):  # a load that is under way comes first
            try:
                await asyncio.to_thread(self._settings.repositories.fetch, source.files)
            except NaiadError:
                return False  # loading it will tell
            unchanged = await self._loads.is_unchanged(source)
        if unchanged := unchanged and all(self._registry.is_serving(need) for need in self._after.get(key, ())):
            logger.info("'%s' is loaded, and nothing of it has changed since", key)
        return unchanged

    async def update(
        self, sources: Mapping[str, ModelSource], gone: Collection[str]
    ) -> Mapping[str, BaseException | None]:
        """Load and reload what changed, then unload what is gone: an ensemble may have changed to live without it.

        Returns:
            What became of each model that was to be loaded, and of the ensembles that were loaded anew for it.
        """
        outcomes = await self._load_anew(sources, {})
        for key in gone:
            await self.unload(key, with_members=False)
            self._registry.forget_failures(key)
        return outcomes

    async def _load_anew(
        self, sources: Mapping[str, ModelSource], models: Mapping[str, ModelFiles] | None, *, is_nested: bool = False
    ) -> Mapping[str, BaseException | None]:
        self._asked.update(sources)
        everything = dict(sources)
        outcomes = dict(await self._add_needed(everything, models))
        outcomes.update(await self._load_in_waves(everything, is_nested=is_nested))
        loaded = [key for key, error in outcomes.items() if error is None]
        return {**outcomes, **await self._renew(loaded, is_nested=is_nested)}

    async def _add_needed(
        self, sources: dict[str, ModelSource], models: Mapping[str, ModelFiles] | None
    ) -> Mapping[str, BaseException | None]:
        """Add what is needed and not loaded, over any number of ensembles; what is nowhere is left out.

        Returns:
            Why some cannot be loaded, as their files cannot be had; they are taken out.
        """
        failures: dict[str, BaseException | None] = {}
        ahead = dict(sources)
        while ahead:
            found = await asyncio.gather(
                *(asyncio.to_thread(self._fetch, source) for source in ahead.values()), return_exceptions=True
            )
            ahead, looked_at = {}, ahead
            for key, message in zip(looked_at, found, strict=True):
                if isinstance(message, BaseException):
                    failures[key] = self._cannot_fetch(key, message)
                    del sources[key]
                    continue
                self._loads.needs.pop(key, None)
                self._after.pop(key, None)
                if message is not None:
                    if models is None:
                        models = (await asyncio.to_thread(self._settings.repositories.scan)).models
                    ahead.update(
                        (need, ModelSource(files=models[need]))
                        for need in sorted(self._note_needs(message, sources[key].files, models) - sources.keys())
                        if need in models and not self._registry.is_serving(need)
                    )
            sources.update(ahead)
        return failures

    def _fetch(self, source: ModelSource) -> pb.ModelConfig | None:
        """Have a model's files here; its configuration if it may name other models. Blocks.

        One that cannot be read needs none: loading it will tell why.
        """
        self._settings.repositories.fetch(source.files)
        try:
            path = config_path(source.files, self._settings.config_name)
            if source.override is None:
                text = path.read_bytes() if path.is_file() else b""
                if not any(mark in text for mark in _MARKS):
                    return None  # most models: their configuration is read once, when they are loaded
            return self._loads.read_config(source)
        except (NaiadError, OSError):
            return None

    def _note_needs(
        self, message: pb.ModelConfig, files: ModelFiles, models: Mapping[str, ModelFiles]
    ) -> frozenset[str]:
        """Note what a model needs, or is to be loaded after; the keys."""

        def keys_of(name: str) -> set[str]:
            return {each.key for each in models_named(name, models)} | set(self._registry.keys_of(name))

        if message.HasField("ensemble_scheduling"):
            find_members(message, files.namespace, keys_of)
            found = self._loads.needs[files.key] = needed_models(message)
            return found
        named = message.parameters[_AFTER].string_value if _AFTER in message.parameters else ""
        found = frozenset(find_key(name, files.namespace, keys_of) for name in named.replace(",", " ").split())
        if found:
            self._after[files.key] = found
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
        for wave in load_waves(sources, {**self._after, **self._loads.needs}):
            results = await asyncio.gather(
                *(self._load_one(sources[name], is_nested=is_nested) for name in wave), return_exceptions=True
            )
            outcomes.update(zip(wave, results, strict=True))
        return outcomes

    async def _load_one(self, source: ModelSource, *, is_nested: bool) -> None:
        key = source.files.key
        async with self._locks.setdefault(key, asyncio.Lock()):
            try:
                await self._loads.load(source, is_nested=is_nested)
            except NaiadError:
                if key in self._loads.ensembles and not self._registry.is_serving(key):
                    self._suspended.add(key)  # until what it needs has changed
                raise
            self._suspended.discard(key)

    async def _renew(self, names: Sequence[str], *, is_nested: bool) -> Mapping[str, BaseException | None]:
        """Load the ensembles anew that need models which were loaded: they may fit no more, or again."""
        needs = self._loads.needs
        affected = {ensemble for name in names for ensemble in dependents(name, needs)}.difference(names)
        if self._registry.is_namespaced:  # a model of another namespace may be nearer now, or ambiguous
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
                    outcomes[ensemble] = await self._renew_one(ensemble, is_nested=is_nested)
        return outcomes

    async def _renew_one(self, ensemble: str, *, is_nested: bool) -> NaiadError | None:
        try:
            await self._load_one(self._loads.ensembles[ensemble], is_nested=is_nested)
        except NaiadError as error:  # logged; it is not what was asked for
            self._suspended.add(ensemble)
            await asyncio.gather(*self._loads.unload(ensemble))
            return error
        return None

    # -- unloading ----------------------------------------------------------------------------------------------

    async def unload(self, name: str, *, with_members: bool) -> None:
        """Begin to unload a model.

        Args:
            name: The model's key.
            with_members: What an ensemble needs, and nobody else needs or asked for, goes as well.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):  # a load that is under way comes first
            needs = dict(self._loads.needs)
            for ensemble in dependents(name, needs):
                if self._registry.is_serving(ensemble):
                    self._suspended.add(ensemble)
                    await asyncio.gather(*self._loads.unload(ensemble))
            going = self._loads.unload(name)
            self._forget(name)
            if not with_members or name not in needs:  # only ensembles need others
                return
            await asyncio.gather(*going)
            members = all_dependencies(name, needs)
            for wave in reversed(load_waves(members, needs)):
                for member in wave:
                    if member not in self._asked and not dependents(member, self._loads.needs):
                        going = self._loads.unload(member)
                        self._forget(member)
                        if member in needs:
                            await asyncio.gather(*going)

    def _forget(self, name: str) -> None:
        self._asked.discard(name)
        self._suspended.discard(name)
        self._loads.needs.pop(name, None)
        self._loads.ensembles.pop(name, None)

    async def stop(self) -> None:
        """End all versions, ensembles before what they need; all together have the exit timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.exit_timeout
        versions = {model.key: model.serving() for model in self._registry}
        for wave in reversed(load_waves(versions, self._loads.needs)):
            timeout = max(deadline - loop.time(), 0)
            await asyncio.gather(*(version.stop(timeout) for name in wave for version in versions[name]))
        await self._loads.wait_unloaded()
