"""`leftovers`: what an engine still has, by name, when nothing is in progress and nothing may be left.

The simulation asks after each history, and each forked server when it ends: see `report_at_end`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

from naiad.engine.engine import Engine
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.registry import Registry
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.version import ModelVersion
from naiad.guests.worker import Worker
from naiad.protocol.metadata import ModelState

_LOOKS, _LOOK_SECONDS = 1000, 0.02


def report_at_end(mark: str) -> None:
    """Have this process, which is to become a server, print a line with *mark* if its engine is not idle at its stop.

    Nothing is printed while requests or sequences are in progress.
    """
    stop = Engine.stop

    async def look_and_stop(engine: Engine) -> None:
        await engine.end_loads()
        versions = [each for each in engine._registry.versions_alive.values() if isinstance(each, ModelVersion)]
        for _ in range(_LOOKS):
            if any(each.in_flight or each._in_flight.open_sequences for each in versions):
                break
            for each in versions:
                each.maintain()  # as it does every now and then
            if not (left := leftovers(engine, may_keep=True)):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            print(mark + "; ".join(left), file=sys.stderr, flush=True)
        await stop(engine)

    Engine.stop = look_and_stop  # type: ignore[method-assign]


def leftovers(engine: Engine, *, may_keep: bool = False) -> list[str]:
    """What is left, such as "plain_0_0: 1 open requests"; empty for nothing.

    Args:
        engine: Where nothing is in progress.
        may_keep: Whether models may refer to inputs and results beyond their requests.
    """
    registry = engine._registry
    limiter = engine._order._loads._loader.limiter
    found = [*_of_states(registry), *(() if limiter is None else _of_limiter(limiter))]
    for version in registry.versions_alive.values():
        if isinstance(version, ModelVersion):
            found += leftovers_of(version, may_keep=may_keep)
        elif isinstance(version, DormantVersion):
            found += _counted(version.config.name, {"waiting requests of a dormant version": len(version._waiting)})
        elif isinstance(version, EnsembleVersion):
            found += _counted(version.config.name, {"requests of an ensemble": version._execution.in_flight})
    found += _counted("calls", {"open calls": sum(len(each) for each in engine.services.calls._calls.values())})
    return found


def _counted(name: str, counts: dict[str, int]) -> Iterator[str]:
    return (f"{name}: {count} {what}" for what, count in counts.items() if count)


def _of_states(registry: Registry) -> Iterator[str]:
    """States of records that what they have contradicts, and versions that are alive and serve nobody."""
    serving = set()
    for model in registry:
        for record in model.versions.values():
            if record.loaded is not None:
                serving.add(record.loaded.number)
            if (record.loaded is not None) != (record.state is ModelState.READY):
                yield f"{model.key} is {record.state.value} and {'has' if record.loaded else 'has not'} a version"
            if record.handover is not None:
                yield f"{model.key}: a handover"
    for number, version in registry.versions_alive.items():
        if number not in serving:
            yield f"{version.config.name}: a version that serves nobody"


def _of_limiter(limiter: SharedRateLimiter) -> Iterator[str]:
    for (_, name), used in limiter._limiter._used.items():
        yield from _counted(f"resource {name}", {"units in use": used})
    yield from _counted("rate limiter", {"staged batches": sum(map(len, limiter._staged.values()))})


def leftovers_of(version: ModelVersion, *, may_keep: bool = False) -> Iterator[str]:
    """What a version still has; see `leftovers`."""
    in_flight, name = version._in_flight, version.config.name
    timer = in_flight.dispatcher._timer
    yield from _counted(
        name,
        {
            "requests": len(in_flight),
            "waiting requests": in_flight.dispatcher.waiting_count,
            "sequences": in_flight.open_sequences,
            "responses that wait for others": 0 if in_flight.order is None else len(in_flight.order),
            "staged requests": 0 if in_flight._gate is None else in_flight._gate.staged_count,
            "timers of the scheduler": int(timer is not None and timer._handle is not None),
            "instances that change": len(version._changing),
            "samples of the warm-up": len(version._warm_up._runs),
        },
    )
    for instance in version.instances:
        if instance.worker is not None:
            yield from _of_worker(instance.worker, may_keep=may_keep)


def _of_worker(worker: Worker, *, may_keep: bool) -> Iterator[str]:
    results = worker._results
    are_kept = may_keep and bool(results._kept or results._kept_shared)
    yield from _counted(
        worker.spec.name,
        {
            "open requests": len(worker.open),
            "batches": len(worker.batches),
            "bytes of inputs": 0 if are_kept else worker.memory.input_byte_size,
            "borrowed blocks": worker.memory.borrowed_count,
            "results that wait": len(results._waiting),
            "results and inputs that are kept": 0 if may_keep else len(results._kept) + len(results._kept_shared),
            "unanswered queries": worker._queries,
            "frames that wait": len(worker._waiting),
        },
    )
