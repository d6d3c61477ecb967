"""Models that come and go with demand: loaded by their first request, unloaded when idle or for others' memory.

`naiad.engine.lifecycle.demand` decides; `ModelLoads` lets a dormant version and a loaded one replace each other.
Everything runs on the event loop's thread, so nothing can begin to use a model between the decision to unload it and
that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

from naiad.config.model.parameters import or_default
from naiad.core import blocking, clock
from naiad.core.errors import NaiadError, NotReadyError, without_frames
from naiad.core.quantities import size_text
from naiad.engine.lifecycle.demand import (
    ModelInMemory,
    Room,
    expected_size,
    headroom,
    idle_models,
    plan_room,
    retry_delay,
)
from naiad.engine.loading.load_order import LoadOrder
from naiad.engine.loading.model_loads import ModelLoads
from naiad.engine.registry import ModelRecord, Registry
from naiad.engine.served import ServedVersion
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.guests.memory.processes import memory_of
from naiad.protocol.metadata import DemandStatus

logger = logging.getLogger("naiad.engine")

_WATCH_SECONDS = 1.0  # how often memory is measured and idle models are looked for
# The part of the limit that is used: sizes are up to a second old, and when a guest ends, pages that it shared count
# more for the others.
_TARGET = 0.95
_ROOM_SECONDS = 0.05  # how often a load that needs room looks whether a model in use has become idle


@dataclass(slots=True)
class _DemandState:
    wake: asyncio.Task[None] | None = None
    urgent: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    size: int = 0  # bytes of its guests when they were measured last, also of earlier loads; 0 if never
    last_used: float = 0.0


class DemandLoads:
    """Loads dormant models for requests, and lets loaded ones become dormant again."""

    def __init__(self, settings: EngineSettings, loads: ModelLoads, order: LoadOrder, registry: Registry) -> None:
        self.loads: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        # How often a model was unloaded, by model and cause (`idle` or `memory`).
        self.evictions: Counter[tuple[str, str]] = Counter()
        self._settings = settings
        self._loads = loads
        self._order = order
        self._registry = registry
        self._slots = asyncio.Semaphore(settings.load_threads)
        self._states: dict[str, _DemandState] = {}
        self._reserved: dict[str, int] = {}  # bytes that loads in progress are expected to need, once they have room
        self._watching: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_over = False  # whether the limit was exceeded at the last check, so that this is logged once
        loads.on_wake = self._on_wake

    async def stop(self) -> None:
        self._is_stopped = True
        tasks = [state.wake for state in self._states.values() if state.wake is not None]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loads.release_prewarmed()

    def status(self) -> DemandStatus | None:
        states = self.states()
        if not states:
            return None
        sizes = {model.key: self._state(model.key).size for model in self._registry if _loaded_versions(model)}
        return DemandStatus(
            states=states,
            sizes=sizes,
            limit=self._settings.models_memory,
            loads=dict(self.loads),
            failures=dict(self.failures),
            evictions=dict(self.evictions),
        )

    def states(self) -> Mapping[str, str]:
        """The state of each model on demand, by its key: dormant, loading, loaded, failed."""
        return {model.key: self._state_of(model) for model in self._registry if model.is_on_demand}

    # -- loading --------------------------------------------------------------------------------------------------

    def _on_wake(self, key: str, *, is_urgent: bool) -> None:
        if self._is_stopped:
            return  # the request is answered when its dormant version is stopped
        state = self._state(key)
        if is_urgent:
            state.urgent.set()
        if state.wake is None:
            state.wake = asyncio.get_running_loop().create_task(self._wake(key, state))
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _wake(self, key: str, state: _DemandState) -> None:
        started, error = clock.monotonic(), None
        try:
            async with _taken(self._slots, state.urgent):
                if await self._has_room(key, state):
                    await self._order.wake(key)
        except NaiadError as problem:
            error = without_frames(problem)
        except Exception as problem:
            logger.exception("cannot load '%s'", key)
            error = NaiadError(f"cannot load '{key}': {problem}")
        finally:
            self._reserved.pop(key, None)
            state.wake = None
            state.urgent.clear()
        if error is None:
            state.failures = 0
            state.last_used = clock.monotonic()
            if self._has_guests(key):
                self.loads[key] += 1
                logger.info("'%s' was loaded on demand in %.2f s", key, state.last_used - started)
                await self._measure([key])
                if self._settings.models_memory:  # it may be larger than expected
                    await self._evict(self._plan_room(is_ahead=True).evict, "memory")
        else:
            state.failures += 1
            self.failures[key] += 1
            delay = retry_delay(state.failures)
            logger.warning("'%s' could not be loaded on demand; requests try again after %g s", key, delay)
            for version in self._dormant_versions(key):
                version.fail_waiting(NotReadyError(error.message), delay)

    async def _has_room(self, key: str, state: _DemandState) -> bool:
        """Unload idle models until the memory that a load needs is free; wait for models in use.

        Returns:
            Whether the model may be loaded; False if no request waits for it any more.

        Raises:
            NotReadyError: If the model can never fit.
        """
        limit = self._settings.models_memory
        if not limit:
            return True
        await self._measure_unknown()
        size = expected_size(state.size, (each.size for each in self._states.values()))
        while any(version.pending_count for version in self._dormant_versions(key)):
            # Memory is reserved once there is room, not before: two loads would wait for the memory of each other.
            room = self._plan_room(size)
            if state.size > room.spare:
                raise NotReadyError(
                    f"cannot load '{key}': it used {size_text(state.size)} when it was loaded last, and "
                    f"--models-memory={size_text(limit)} leaves {size_text(max(room.spare, 0))} beside models that "
                    "stay; raise the limit, or pin fewer models"
                )
            if size > room.spare > 0:  # a guess from the sizes of others, which must not keep it from ever being tried
                size = room.spare
                continue
            if room.evict:
                await self._evict(room.evict, "memory")
                continue  # meanwhile another load may have taken the room
            if not room.is_enough and state.urgent.is_set():
                logger.warning(
                    "'%s' is loaded beyond --models-memory: a model in use waits for it, and no other model is idle",
                    key,
                )
            if room.is_enough or state.urgent.is_set():
                self._reserved[key] = size
                return True
            for version in self._dormant_versions(key):
                version.hindrance = (
                    f"the models in use need the {size_text(limit)} of --models-memory, and none of them became idle"
                )
            await asyncio.sleep(_ROOM_SECONDS)
        return False

    # -- unloading ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await self._unload_idle()
            except Exception:
                logger.exception("cannot look for idle models")

    async def _unload_idle(self) -> None:
        """Measure, then unload the models that were idle for too long and those that exceed the limit."""
        await self._measure(model.key for model in self._registry if _loaded_versions(model))
        await self._evict(idle_models(self._loaded_models(), clock.monotonic()), "idle")
        limit = self._settings.models_memory
        if not limit:
            return
        room = self._plan_room()
        if not room.is_enough and not self._is_over:
            logger.warning("models in use or pinned need more than --models-memory=%s", size_text(limit))
        self._is_over = not room.is_enough
        await self._evict(self._plan_room(is_ahead=True).evict, "memory")

    def _plan_room(self, size: int = 0, *, is_ahead: bool = False) -> Room:
        """How to make room for the loads in progress and *size* bytes; with *is_ahead* also for loads that follow."""
        limit, needed = int(self._settings.models_memory * _TARGET), sum(self._reserved.values()) + size
        if is_ahead:
            needed += headroom(limit, (each.size for each in self._states.values()))
        return plan_room(self._loaded_models(), limit=limit, needed=needed)

    async def _evict(self, keys: Iterable[str], cause: str) -> None:
        """Let models become dormant, and wait until their guests have ended: only then their memory is free."""
        ending: list[asyncio.Task[None]] = []
        for key in keys:
            self.evictions[key, cause] += 1
            why = "another model needs its memory" if cause == "memory" else "it was idle"
            logger.info("'%s' is unloaded, since %s; its next request loads it again", key, why)
            ending += self._loads.put_to_sleep(key)
        if ending:
            await asyncio.gather(*ending, return_exceptions=True)

    # -- state ----------------------------------------------------------------------------------------------------

    def _loaded_models(self) -> list[ModelInMemory]:
        now, found = clock.monotonic(), []
        for model in self._registry:
            versions = _loaded_versions(model)
            if not versions:
                continue
            state = self._state(model.key)
            is_in_use = self._order.is_changing(model.key) or not all(
                isinstance(version, ModelVersion) and version.is_idle for version in versions
            )
            is_in_use = is_in_use or any(record.handover is not None for record in model.versions.values())
            last = now if is_in_use else max(version.totals.last for version in versions) / 1e9
            state.last_used = max(state.last_used, last)
            found.append(
                ModelInMemory(
                    key=model.key,
                    size=state.size,
                    last_used=state.last_used,
                    idle_seconds=self._idle_seconds(versions),
                    is_pinned=not model.is_on_demand,
                    is_in_use=is_in_use,
                )
            )
        return found

    def _idle_seconds(self, versions: list[ServedVersion]) -> float:
        return or_default(versions[-1].config.settings.idle_seconds, self._settings.demand_idle_seconds)

    async def _measure_unknown(self) -> None:
        loaded = (model.key for model in self._registry if _loaded_versions(model))
        await self._measure(key for key in loaded if not self._state(key).size)

    async def _measure(self, keys: Iterable[str]) -> None:
        pids = {key: list(self._pids(key)) for key in keys}
        sizes = await blocking.run(memory_of, [pid for found in pids.values() for pid in found])
        for key, found in pids.items():
            if size := sum(sizes[pid] for pid in found):
                self._state(key).size = size

    def _pids(self, key: str) -> Iterable[int]:
        model = self._registry.known(key)
        versions = [] if model is None else _loaded_versions(model)
        # As a set: all instances of a native model may share one process.
        return {each.worker.pid for version in versions for each in version.instances if each.worker is not None}

    def _has_guests(self, key: str) -> bool:
        model = self._registry.known(key)
        return model is not None and bool(_loaded_versions(model))

    def _dormant_versions(self, key: str) -> list[DormantVersion]:
        model = self._registry.known(key)
        return [] if model is None else [each for each in model.serving() if isinstance(each, DormantVersion)]

    def _state(self, key: str) -> _DemandState:
        return self._states.setdefault(key, _DemandState())

    def _state_of(self, model: ModelRecord) -> str:
        state = self._state(model.key)
        if state.wake is not None:
            return "loading"
        if _loaded_versions(model):
            return "loaded"
        return "failed" if any(version.reason for version in self._dormant_versions(model.key)) else "dormant"


@contextlib.asynccontextmanager
async def _taken(slots: asyncio.Semaphore, urgent: asyncio.Event) -> AsyncIterator[None]:
    """A context in which one of *slots* is taken, unless *urgent* is set first."""
    taking, hurrying = asyncio.ensure_future(slots.acquire()), asyncio.ensure_future(urgent.wait())
    try:
        if not urgent.is_set():
            await asyncio.wait([taking, hurrying], return_when=asyncio.FIRST_COMPLETED)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        yield
    finally:
        hurrying.cancel()
        taking.cancel()
        if taking.done() and not taking.cancelled():
            slots.release()


def _loaded_versions(model: ModelRecord) -> list[ServedVersion]:
    return [
        record.loaded
        for record in model.versions.values()
        if record.loaded is not None and (isinstance(record.loaded, ModelVersion) or record.handover is not None)
    ]
