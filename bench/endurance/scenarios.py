"""The list of all loads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from bench.endurance import cancels, chains, measure, stalled, streams
from bench.endurance.account import Account
from bench.endurance.clients import Address
from bench.endurance.repository import Model, chain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """The durations and numbers of clients of the loads.

    Attributes:
        seconds: Duration of the timed loads, the sum of all parts.
        chains: Number of clients of chains.
        streams: Number of clients of streams.
        responses: Responses for each stream.
        stalled: Number of clients that stop reading.
        cancelling: Number of clients that cancel.
    """

    seconds: float = 60
    chains: int = 200
    streams: int = 100
    responses: int = 1000
    stalled: int = 4
    cancelling: int = 40

    @property
    def part(self) -> float:
        """Seconds of one of the three parts of a load."""
        return self.seconds / 3


Load = Callable[[Address, Account, Size], Awaitable[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """One load on one server.

    Attributes:
        name: The load's name in the report.
        models: The models that the server serves.
        load: Runs a third of the load; called three times.
        counts: Number of inferences of each model for one request; empty if requests are cancelled.
    """

    name: str
    models: Sequence[Model]
    load: Load
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


async def _chains(address: Address, account: Account, size: Size, *, decoupled: bool) -> None:
    await chains.run(address, account, clients=size.chains, seconds=size.part, decoupled=decoupled)


async def _streams(address: Address, account: Account, size: Size, *, model: str) -> None:
    await streams.run(address, account, model=model, clients=size.streams, rounds=1, responses=size.responses)


async def _stalled(address: Address, account: Account, size: Size, *, model: str, hops: int) -> None:
    look = functools.partial(measure.read, address.pid)
    await stalled.run(
        address, account, model=model, clients=size.stalled, responses=2 * size.responses, hops=hops, look=look
    )


async def _cancels(address: Address, account: Account, size: Size, *, stream: str) -> None:
    await cancels.run(address, account, stream=stream, clients=size.cancelling, seconds=size.part)


def _repeat(code: str, instances: int = 1, environment: Path | None = None) -> Model:
    return Model(name="repeat", code=code, decoupled=True, instances=instances, environment=environment)


_FORWARD = Model(name="forward", code="forward", decoupled=True, parameters=(("next", "repeat"),))
_ONCE = {"head": 1, "middle": 1, "leaf": 1}
_TWICE = {"head": 1, "middle": 2, "leaf": 4}


def scenarios(environment: Path | None) -> Sequence[Scenario]:
    """All loads; those with another Python only if *environment* contains one."""
    found = [*_of_chains(), *_of_streams(), *_of_others()]
    return found if environment is None else [*found, *_of_another_python(environment)]


def _of_chains() -> Sequence[Scenario]:
    synchronous = ("link_sync",) * 3
    asynchronous = ("link_async", "link_async", "link_sync")
    answering_later = ("link_threads", "link_sync", "link_sync")
    plain = functools.partial(_chains, decoupled=False)
    late = functools.partial(_chains, decoupled=True)
    all_async = chain(asynchronous, decoupled=(True, True, False))
    return [
        Scenario(name="chains", models=chain(synchronous), load=plain, counts=_ONCE),
        Scenario(name="chains, 2 instances", models=chain(synchronous, instances=2), load=plain, counts=_ONCE),
        Scenario(name="chains, async", models=chain(asynchronous), load=plain, counts=_TWICE),
        Scenario(name="chains, async, 2 instances", models=chain(asynchronous, instances=2), load=plain, counts=_TWICE),
        Scenario(name="chains, async decoupled", models=all_async, load=late, counts=_TWICE),
        Scenario(
            name="chains, threads",
            models=chain(answering_later, decoupled=(True, False, False)),
            load=late,
            counts=_ONCE,
        ),
        Scenario(
            name="chains, threads, 2 instances",
            models=chain(answering_later, decoupled=(True, False, False), instances=2),
            load=late,
            counts=_ONCE,
        ),
    ]


def _of_streams() -> Sequence[Scenario]:
    to_repeat = functools.partial(_streams, model="repeat")
    once = {"repeat": 1}
    return [
        Scenario(name="streams", models=[_repeat("repeat_sync")], load=to_repeat, counts=once),
        Scenario(name="streams, 2 instances", models=[_repeat("repeat_sync", 2)], load=to_repeat, counts=once),
        Scenario(name="streams, threads", models=[_repeat("repeat_threads")], load=to_repeat, counts=once),
        Scenario(name="streams, async", models=[_repeat("repeat_async")], load=to_repeat, counts=once),
        Scenario(name="streams, async, 2 instances", models=[_repeat("repeat_async", 2)], load=to_repeat, counts=once),
        Scenario(
            name="streams, forwarded",
            models=[_FORWARD, _repeat("repeat_threads")],
            load=functools.partial(_streams, model="forward"),
            counts={"forward": 1, "repeat": 1},
        ),
    ]


def _of_others() -> Sequence[Scenario]:
    gives_up = functools.partial(_cancels, stream="repeat")
    return [
        Scenario(
            name="not reading, threads",
            models=[_repeat("repeat_threads")],
            load=functools.partial(_stalled, model="repeat", hops=1),
        ),
        Scenario(
            name="not reading, forwarded",
            models=[_FORWARD, _repeat("repeat_threads")],
            load=functools.partial(_stalled, model="forward", hops=2),
        ),
        Scenario(name="giving up", models=[*chain(("link_sync",) * 3), _repeat("repeat_sync")], load=gives_up),
        Scenario(
            name="giving up, 2 instances",
            models=[*chain(("link_sync",) * 3, instances=2), _repeat("repeat_threads", 2)],
            load=gives_up,
        ),
        Scenario(
            name="giving up, async",
            models=[*chain(("link_async", "link_async", "link_sync")), _repeat("repeat_async")],
            load=gives_up,
        ),
        Scenario(
            name="giving up, forwarded",
            models=[*chain(("link_sync",) * 3), _FORWARD, _repeat("repeat_threads")],
            load=functools.partial(_cancels, stream="forward"),
        ),
    ]


def _of_another_python(environment: Path) -> Sequence[Scenario]:
    return [
        Scenario(
            name="chains, other Python",
            models=chain(("link_sync",) * 3, environments=(None, environment, None)),
            load=functools.partial(_chains, decoupled=False),
            counts=_ONCE,
        ),
        Scenario(
            name="chains, async, other Python",
            models=chain(
                ("link_async", "link_async", "link_sync"),
                decoupled=(True, True, False),
                environments=(environment, None, environment),
            ),
            load=functools.partial(_chains, decoupled=True),
            counts=_TWICE,
        ),
        Scenario(
            name="streams, other Python",
            models=[_FORWARD, _repeat("repeat_async", environment=environment)],
            load=functools.partial(_streams, model="forward"),
            counts={"forward": 1, "repeat": 1},
        ),
        Scenario(
            name="giving up, other Python",
            models=[
                *chain(("link_sync", "link_async", "link_sync"), environments=(environment,) * 3),
                _repeat("repeat_threads", environment=environment),
            ],
            load=functools.partial(_cancels, stream="repeat"),
        ),
    ]
