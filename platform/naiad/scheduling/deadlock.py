"""Which instances wait on each other for ever, when models call models. Pure: instances are whatever is hashable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

Instance = TypeVar("Instance", bound=Hashable)


def find_deadlocked(waits: Mapping[Instance, Sequence[Collection[Instance]]]) -> set[Instance]:
    """The instances that can never go on.

    Args:
        waits: For each instance that waits, its calls; of each call, the instances any of which could answer it. A
            call without such instances waits for one that is being started, so it is not lost.

    Returns:
        The largest set of instances that each have a call which only instances of the set could answer.
    """
    return _largest(waits, any)


def find_mutually_blocked(calls: Mapping[Instance, Sequence[Collection[Instance]]]) -> set[Instance]:
    """The instances that go on only if one of them does.

    Unlike `find_deadlocked`, for instances that may go on with the answer to any of their calls.

    Args:
        calls: For each instance that waits for nothing but its calls: of each call, as `find_deadlocked` takes it.

    Returns:
        The largest set of instances all of whose calls only instances of the set could answer.
    """
    return _largest(calls, all)


def _largest(
    calls: Mapping[Instance, Sequence[Collection[Instance]]], holds_up: Callable[[Iterator[bool]], bool]
) -> set[Instance]:
    """The largest set of instances that are held up, given for each of their calls whether the set alone answers it."""
    held = set(calls)
    while True:
        free = {
            instance
            for instance in held
            if not holds_up(bool(servers) and held.issuperset(servers) for servers in calls[instance])
        }
        if not free:
            return held
        held -= free


def deadlock_cycle(start: Instance, waits: Mapping[Instance, Sequence[Collection[Instance]]]) -> list[Instance]:
    """InstanceLoads that wait on each other in a ring, found by following the calls from the stuck instance *start*.

    Returns:
        The ring, from the first instance that is met twice to itself; empty if *start* is not stuck.
    """
    stuck = find_deadlocked(waits)
    path: list[Instance] = []
    instance = start
    while instance in stuck:
        if instance in path:
            return [*path[path.index(instance) :], instance]
        path.append(instance)
        servers = next(servers for servers in waits[instance] if servers and stuck.issuperset(servers))
        instance = next(iter(servers))
    return []
