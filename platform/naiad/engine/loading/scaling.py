"""Adds and removes instances of models whose configuration gives a range (`min_instances`, `max_instances`).

`naiad.engine.lifecycle.scaling` decides from what each look shows; `ModelVersion.change_instances` does it, as for a
changed configuration. Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from naiad.config.model.scaling import ScalingPolicy
from naiad.core import clock
from naiad.core.errors import NaiadError
from naiad.engine.lifecycle.scaling import ScalingState, decide, on_failed
from naiad.engine.loading.load_order import LoadOrder
from naiad.engine.loading.model_loads import ModelLoads
from naiad.engine.registry import Registry
from naiad.engine.serving.version import ModelVersion

logger = logging.getLogger("naiad.engine")

_WATCH_SECONDS = 0.1


@dataclass(slots=True)
class _ScaledVersion:
    key: str
    version: ModelVersion
    policy: ScalingPolicy
    state: ScalingState = field(default_factory=ScalingState)
    change: asyncio.Task[None] | None = None


class InstanceScaling:
    """Has the number of instances of some versions follow their load."""

    def __init__(self, loads: ModelLoads, order: LoadOrder, registry: Registry) -> None:
        self._loads = loads
        self._order = order
        self._registry = registry
        self._versions: dict[int, _ScaledVersion] = {}
        self._watching: asyncio.Task[None] | None = None
        loads.on_loaded = self._on_loaded

    async def stop(self) -> None:
        self._loads.on_loaded = lambda key, version: None  # noqa: ARG005 - the signature of a callback
        tasks = [each.change for each in self._versions.values() if each.change is not None]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_loaded(self, key: str, version: ModelVersion) -> None:
        policy = version.config.settings.scaling
        if policy is None:
            return
        self._versions[version.number] = _ScaledVersion(key, version, policy)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while self._versions:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                for number, each in list(self._versions.items()):
                    if number not in self._registry.versions_alive:
                        del self._versions[number]
                    elif each.change is None and not self._order.is_changing(each.key):
                        self._observe(each)
            except Exception:
                logger.exception("cannot read the load of models")

    def _observe(self, each: _ScaledVersion) -> None:
        load, now = each.version.instance_load(), clock.monotonic()
        each.state, wanted = decide(each.policy, each.state, load, now)
        if wanted == load.count:
            return
        why = f"requests waited {load.waited:.2g} s" if wanted > load.count else "fewer are needed"
        noun = "instance" if wanted == 1 else "instances"
        logger.info("'%s': %d %s instead of %d, since %s", each.key, wanted, noun, load.count, why)
        each.change = asyncio.get_running_loop().create_task(self._scale(each, wanted))

    async def _scale(self, each: _ScaledVersion, wanted: int) -> None:
        try:
            await self._order.scale(each.key, each.version, wanted)
            each.state = replace(each.state, failures=0)
        except NaiadError as error:
            each.state = on_failed(each.state, clock.monotonic())
            pause = each.state.not_before - clock.monotonic()
            logger.error("cannot add instances of '%s': %s; tried again after %.0f s", each.key, error.message, pause)  # noqa: TRY400 - the model's error
        finally:
            each.change = None
