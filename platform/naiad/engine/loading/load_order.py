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
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from naiad.core.errors import InvalidRequestError, NaiadError, NotReadyError, fresh, without_frames
from naiad.engine.lifecycle.dependencies import all_dependencies, dependents, load_waves
from naiad.engine.loading.model_loads import LoadOutcome, ModelLoads
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.registry import Registry
from naiad.engine.serving.version import ModelVersion
from naiad.models.repository.layout import ModelFiles

logger = logging.getLogger("naiad.engine")

_T = TypeVar("_T")


# For each model, whether it was loaded, False if it has not changed since it was, or why it could not be.
_Outcomes = Mapping[str, bool | BaseException]


@dataclass(slots=True, kw_only=True)
class _Batch:
    models: Mapping[str, ModelFiles] | None  # the models of the repositories, by key; None if they are not known yet
    is_nested: bool = False
    is_compared: bool = False  # whether a model that serves and has not changed stays as it is
    loads: dict[str, asyncio.Task[bool]] = field(default_factory=dict)
    waits: dict[str, frozenset[str]] = field(default_factory=dict)


class LoadOrder:
    """Loads and unloads models, identified by their keys, together with their dependencies and dependents."""

    def __init__(self, loads: ModelLoads, registry: Registry) -> None:
        self._loads = loads
        self._registry = registry
        # Weak, because clients may name models that do not exist: a lock stays while somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._requested: set[str] = set()  # models that were loaded because they were requested, not as a member
        self._suspended: set[str] = set()  # ensembles that were unloaded because a member was
        self._changes: set[asyncio.Task[Any]] = set()  # loads and unloads in progress
        self._ending = asyncio.Event()  # set when the server stops

    # -- loading ------------------------------------------------------------------------------------------------

    async def load_all(
        self, sources: Mapping[str, ModelSource], models: Mapping[str, ModelFiles]
    ) -> Mapping[str, BaseException | None]:
        """Load models at the start, and their dependencies out of *models*; the outcome of each of *sources*."""
        for key in sources:
            self._registry.record(key).step = "waiting for other loads"
        outcomes = await self._load_together(_Batch(models=models), sources)
        return {key: _error(outcomes[key]) for key in sources}

    async def load(self, sources: Sequence[ModelSource], *, is_nested: bool = False) -> bool:
        """Load or reload models; before them their missing dependencies, after them the ensembles depending on them.

        A model whose files have not changed since it was loaded is left as it is.

        Returns:
            Whether instances that were replaced are still ending (see `ModelLoads.wait_replaced`).
        """
        batch = _Batch(models=None, is_nested=is_nested, is_compared=True)
        outcomes = await self._load_with_dependents(batch, {source.files.key: source for source in sources})
        asked = {source.files.key: outcomes[source.files.key] for source in sources}
        errors = [error for outcome in asked.values() if (error := _error(outcome)) is not None]
        if len(errors) > 1 and all(isinstance(error, NaiadError) for error in errors):
            raise InvalidRequestError("".join(str(error) for error in errors))
        if errors:
            raise fresh(errors[0])
        return any([await self._loads.wait_replaced(key) for key, is_loaded in asked.items() if is_loaded])

    async def update(
        self, sources: Mapping[str, ModelSource], removed: Collection[str]
    ) -> Mapping[str, BaseException | None]:
        """Load and reload changed models, then unload removed ones: an ensemble may have changed to do without them.

        Returns:
            The outcome of each model to load, and of the ensembles that were reloaded because of it.
        """
        outcomes = await self._load_with_dependents(_Batch(models={}), sources)
        for key in removed:
            await self.unload(key, with_members=False)
            self._registry.forget_failures(key)
        return {key: _error(outcome) for key, outcome in outcomes.items()}

    async def _load_with_dependents(self, batch: _Batch, sources: Mapping[str, ModelSource]) -> _Outcomes:
        outcomes = await self._load_together(batch, sources)
        loaded = [key for key, outcome in outcomes.items() if outcome is True]
        return {**outcomes, **await self._reload_dependents(loaded, is_nested=batch.is_nested)}

    async def _load_together(self, batch: _Batch, sources: Mapping[str, ModelSource]) -> _Outcomes:
        """Load models, and those that they need and that do not serve; the outcomes of all of them."""
        self._requested.update(sources)
        await asyncio.gather(*(self._task(batch, each) for each in sources.values()), return_exceptions=True)
        return {key: task.exception() or task.result() for key, task in batch.loads.items()}

    def _task(self, batch: _Batch, source: ModelSource) -> asyncio.Task[bool]:
        task = batch.loads[source.files.key] = asyncio.get_running_loop().create_task(self._load_one(batch, source))
        return task

    async def _load_one(self, batch: _Batch, source: ModelSource) -> bool:
        """Load a model after those that it needs; False if it has not changed since it was loaded.

        Which models it needs is in its configuration, which its preparation reads. It is prepared anew if it needs any:
        meanwhile it holds neither its lock nor a slot, so that these can be loaded.
        """
        key = source.files.key
        result = await self._run(self._load_locked(source, is_nested=batch.is_nested, batch=batch))
        if not result.needs:
            return result.is_loaded
        if batch.models is None:
            batch.models = result.models
        for need in sorted(result.needs):
            if need not in batch.loads and need in batch.models and not self._registry.is_serving(need):
                self._task(batch, ModelSource(files=batch.models[need]))
        # Models that need each other do not wait for each other: the load of an ensemble reports that.
        waited = [
            need
            for need in batch.loads.keys() & result.needs
            if key not in {need, *all_dependencies(need, batch.waits)}
        ]
        batch.waits[key] = frozenset(waited)
        try:
            await asyncio.gather(*(batch.loads[need] for need in waited), return_exceptions=True)
            await self._run(self._load_locked(source, is_nested=batch.is_nested))
        finally:
            self._registry.record(key).step = ""
        return True

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _run(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Run a load or unload, which `end_loads` may cancel; NotReadyError if the server stops meanwhile."""
        if self._ending.is_set():
            change.close()
            raise NotReadyError("Server exiting")
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await task
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

    async def _load_locked(
        self, source: ModelSource, *, is_nested: bool, is_dependent: bool = False, batch: _Batch | None = None
    ) -> LoadOutcome:
        """Load a model while nobody else changes it; unload it if that fails and it *is_dependent*.

        Without *batch*, its files were fetched, and what it needs was loaded, before.
        """
        how: dict[str, Any] = {"is_nested": is_nested}
        if batch is not None:
            how |= {"is_first": True, "is_compared": batch.is_compared, "models": batch.models}
        key = source.files.key
        async with self._lock(key):
            try:
                result = await self._loads.load(source, **how)
            except NaiadError:
                if is_dependent:
                    await _ended(self._loads.unload(key))
                if key in self._loads.ensembles and not self._registry.is_serving(key):
                    self._suspended.add(key)  # until what it needs has changed
                raise
            if result.is_loaded:
                self._suspended.discard(key)
            return result

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

    async def _reload_dependents(self, names: Sequence[str], *, is_nested: bool) -> _Outcomes:
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
        outcomes: dict[str, bool | BaseException] = {}
        for wave in load_waves(affected, needs):
            for ensemble in wave:
                source = self._loads.ensembles.get(ensemble)  # None: it was unloaded meanwhile
                if source is not None and (ensemble in self._suspended or self._registry.is_serving(ensemble)):
                    outcomes[ensemble] = await self._reload_dependent(source, is_nested=is_nested)
        return outcomes

    async def _reload_dependent(self, source: ModelSource, *, is_nested: bool) -> bool | NaiadError:
        try:
            await self._run(self._load_locked(source, is_nested=is_nested, is_dependent=True))
        except NaiadError as error:  # it is logged; the requested load itself did not fail
            return without_frames(error)
        return True

    # -- unloading ----------------------------------------------------------------------------------------------

    async def unload(self, name: str, *, with_members: bool) -> None:
        """Start to unload a model.

        With *with_members*, also unload members of an ensemble that no other ensemble needs and no client requested.
        """
        await self._run(self._unload(name, with_members=with_members))

    def _affected(self, name: str, *, with_members: bool) -> set[str]:
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


def _error(outcome: object) -> BaseException | None:
    return outcome if isinstance(outcome, BaseException) else None


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks, which continue if this is cancelled; each reports its own failure."""
    if waited := set(tasks):
        await asyncio.wait(waited)
