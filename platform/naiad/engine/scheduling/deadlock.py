"""Deadlock detection between instances whose models call other models (BLS). Pure: instances are hashable values.

The wait-for graph has an edge from an instance that waits for a call to every instance that could execute that call.
A call waits for *any* of these instances, and one that calls several models at once waits for *all* of its calls. Such
AND-OR graphs have no simple "a cycle is a deadlock" rule, so
a deadlock is computed as a greatest fixed point: assume that all waiting instances are blocked, repeatedly remove those
that a non-blocked instance can serve, and what remains is blocked forever.

The reference does not detect this: models that wait for each other hang.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Instance = TypeVar("Instance", bound=Hashable)


def find_deadlocked(waits: Mapping[Instance, Sequence[Collection[Instance]]]) -> set[Instance]:
    """The deadlocked instances: those that need the results of all their calls.

    Args:
        waits: For each waiting instance its calls, and for each call the instances that could execute it. A call
            without such instances waits for one that is starting, so it does not block.

    Returns:
        The largest set of instances that each have a call which only instances of the set could execute.
    """
    blocked = set(waits)
    while True:
        # A round removes at least one instance, so there are at most as many rounds as instances.
        unblocked = {
            instance
            for instance in blocked
            if not any(bool(servers) and blocked.issuperset(servers) for servers in waits[instance])
        }
        if not unblocked:
            return blocked
        blocked -= unblocked


def deadlock_cycle(
    start: Instance, waits: Mapping[Instance, Sequence[Collection[Instance]]], deadlocked: set[Instance]
) -> list[Instance]:
    """A cycle of *deadlocked* instances that *start* waits for, in the order of their calls, its first one twice."""
    path: list[Instance] = []
    instance = start
    while instance not in path:
        path.append(instance)
        servers = next(servers for servers in waits[instance] if servers and deadlocked.issuperset(servers))
        instance = next(iter(servers))
    return [*path[path.index(instance) :], instance]
