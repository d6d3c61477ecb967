"""Which models are loaded and unloaded, and in which order, where ensembles need others.

As in the reference: loading an ensemble loads what it needs and is not loaded yet; a model that goes takes the
ensembles along that need it, and they come back with it; an ensemble that goes takes along, if asked to, what was
loaded for its sake alone. Requests under way lose nothing: ensembles end before what they need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from naiad.engine.ensemble_check import needed_models
from naiad.engine.model_loads import ModelLoads
from naiad.engine.registry import Registry
from naiad.engine.settings import EngineSettings
from naiad.engine.source import ModelSource, find_source
from naiad.errors import NaiadError
from naiad.lifecycle.dependencies import closure, dependents, waves
from naiad.repository.layout import ModelFiles
from naiad.repository.read import config_path

logger = logging.getLogger("naiad.engine")

_MARK = b"ensemble_scheduling"


class LoadOrder:
    """Loads and unloads models with those that they need and that need them."""

    def __init__(self, settings: EngineSettings, loads: ModelLoads, registry: Registry) -> None:
        self._settings = settings
        self._loads = loads
        self._registry = registry
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
        await self._add_needed(everything, models)
        outcomes = await self._load_in_waves(everything)
        return {name: outcomes[name] for name in sources}

    async def load(self, source: ModelSource, *, is_nested: bool = False) -> None:
        """Load or reload one model, before it what it needs and is not there, after it the ensembles that need it.

        Raises:
            NaiadError: If it cannot be loaded.
        """
        name = source.files.name
        self._asked.add(name)
        everything = {name: source}
        await self._add_needed(everything, None)
        outcomes = await self._load_in_waves(everything, is_nested=is_nested)
        await self._renew([each for each, error in outcomes.items() if error is None], is_nested=is_nested)
        error = outcomes[name]
        if error is not None:
            raise error

    async def _add_needed(self, sources: dict[str, ModelSource], models: Mapping[str, ModelFiles] | None) -> None:
        """Add what is needed and not loaded, over any number of ensembles; what is nowhere is left out."""
        ahead = list(sources)
        while ahead:
            name = ahead.pop()
            needs = self._loads.needs[name] = await asyncio.to_thread(self._needs_of, sources[name])
            if not needs:
                del self._loads.needs[name]
            for need in sorted(needs - sources.keys()):
                source = None if self._registry.is_serving(need) else await self._find(need, models)
                if source is not None:
                    sources[need] = source
                    ahead.append(need)

    def _needs_of(self, source: ModelSource) -> frozenset[str]:
        """The models that a model needs; blocks. One that cannot be read needs none: loading it will tell why."""
        try:
            path = config_path(source.files, self._settings.config_name)
            if source.override is None and not (path.is_file() and _MARK in path.read_bytes()):
                return frozenset()  # most models: their configuration is read once, when they are loaded
            return needed_models(self._loads.read_config(source))
        except (NaiadError, OSError):
            return frozenset()

    async def _find(self, name: str, models: Mapping[str, ModelFiles] | None) -> ModelSource | None:
        if models is not None:
            return ModelSource(files=models[name]) if name in models else None
        try:
            strict = self._settings.strict_config
            return await asyncio.to_thread(find_source, name, {}, self._settings.repositories, strict=strict)
        except NaiadError:
            return None

    async def _load_in_waves(
        self, sources: Mapping[str, ModelSource], *, is_nested: bool = False
    ) -> Mapping[str, BaseException | None]:
        outcomes: dict[str, BaseException | None] = {}
        for wave in waves(sources, self._loads.needs):
            results = await asyncio.gather(
                *(self._load_one(sources[name], is_nested=is_nested) for name in wave), return_exceptions=True
            )
            outcomes.update(zip(wave, results, strict=True))
        return outcomes

    async def _load_one(self, source: ModelSource, *, is_nested: bool) -> None:
        name = source.files.name
        async with self._locks.setdefault(name, asyncio.Lock()):
            await self._loads.load(source, is_nested=is_nested)
            self._suspended.discard(name)

    async def _renew(self, names: Sequence[str], *, is_nested: bool) -> None:
        """Load the ensembles anew that need models which were loaded: they may fit no more, or again."""
        needs = self._loads.needs
        affected = {ensemble for name in names for ensemble in dependents(name, needs)}.difference(names)
        for wave in waves(affected, needs):
            for ensemble in wave:
                if ensemble in self._suspended or self._registry.is_serving(ensemble):
                    await self._renew_one(ensemble, is_nested=is_nested)

    async def _renew_one(self, ensemble: str, *, is_nested: bool) -> None:
        try:
            await self._load_one(self._loads.ensembles[ensemble], is_nested=is_nested)
        except NaiadError:  # logged; it is not what was asked for
            self._suspended.add(ensemble)
            await asyncio.gather(*self._loads.unload(ensemble))

    # -- unloading ----------------------------------------------------------------------------------------------

    async def unload(self, name: str, *, with_members: bool) -> None:
        """Begin to unload a model.

        Args:
            name: The model.
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
            members = closure(name, needs)
            for wave in reversed(waves(members, needs)):
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
        versions = list(self._registry.ready_versions())
        names = dict.fromkeys(version.config.name for version in versions)
        for wave in reversed(waves(names, self._loads.needs)):
            timeout = max(deadline - loop.time(), 0)
            await asyncio.gather(*(version.stop(timeout) for version in versions if version.config.name in wave))
        await self._loads.wait_unloaded()
