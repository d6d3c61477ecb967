"""The rate limiter (`--rate-limit=execution_count`): instances of all models share limited resources.

Documented in Triton's rate_limiter.md; the rules are those of CORE src/rate_limiter.cc:

1. Each instance declares in its group which resources it needs while it executes, and a priority (1 is the highest).
2. A scheduler's dispatch is *staged* here. An instance has at most one staged and one executing dispatch; further ones
   queue behind them.
3. Staged work is *granted* in ascending order of weight = number of executions so far x priority. So an instance of
   priority 1 executes twice as often as one of priority 2.
4. If the resources of the first staged work are in use, all staged work behind it waits, too. Otherwise an instance
   that needs many units would starve while small ones keep taking them.

Work without resources is granted at once: it takes nothing from others. The reference stages it as well.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from naiad.core.errors import ConfigError
from naiad.engine.scheduling.interface import NamedTuple

Instance = TypeVar("Instance", bound=Hashable)
Work = TypeVar("Work")

EVERY_DEVICE = -2  # device of a capacity that applies to each device

_GLOBAL = -1


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """Units of a resource that an instance needs while it executes; a global resource is shared by all devices."""

    name: str
    number: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """Units of a resource that exist, from `--rate-limit-resource`; for a global resource the device is ignored."""

    name: str
    number: int
    device: int = EVERY_DEVICE


class GrantedWork(NamedTuple, Generic[Instance, Work]):
    """Decision: *instance* executes *work* now."""

    instance: Instance
    work: Work


class _Member(Generic[Work]):
    __slots__ = ("granted", "is_staged", "is_working", "needs", "priority", "work")

    def __init__(self, needs: Mapping[tuple[int, str], int], priority: int) -> None:
        self.needs = needs
        self.priority = max(priority, 1)
        self.granted = 0
        self.is_staged = False
        self.is_working = False
        self.work: deque[Work] = deque()


class RateLimiter(Generic[Instance, Work]):
    """Resources in use, and the instances that wait for them."""

    def __init__(self, limits: Iterable[ResourceCapacity] = ()) -> None:
        self._limits = tuple(limits)
        self._members: dict[Instance, _Member[Work]] = {}
        self._available: dict[tuple[int, str], int] = {}
        self._used: dict[tuple[int, str], int] = {}
        self._staged: list[tuple[int, int, Instance, _Member[Work]]] = []
        self._numbers = count()

    def __repr__(self) -> str:
        used = {f"{name}@{device}": number for (device, name), number in self._used.items() if number}
        return f"<RateLimiter instances={len(self._members)} staged={len(self._staged)} used={used}>"

    def describe_capacities(self) -> str:
        """The units of each resource that the registered instances share, as the reference logs them."""
        devices: dict[int, list[str]] = {}
        for (device, name), number in sorted(self._available.items()):
            devices.setdefault(device, []).append(f"\t\tResource: {name}\t Count: {number}\n")
        lines = ["\nMax Resource Map===>\n"]
        for device, resources in devices.items():
            lines += [f"\tDevice: {'GLOBAL' if device == _GLOBAL else device}\n", *resources]
        return "".join(lines)

    def register(
        self, instance: Instance, resources: Iterable[ResourceNeed] = (), *, priority: int = 0, device: int = 0
    ) -> None:
        """Add an instance; raise ConfigError, and do not add it, if it needs more units than exist."""
        needs: dict[tuple[int, str], int] = {}
        for resource in resources:
            needs[_GLOBAL if resource.is_global else device, resource.name] = resource.number
        self._members[instance] = _Member(needs, priority)
        try:
            self._available = self._count()
        except ConfigError:
            del self._members[instance]
            raise

    def unregister(self, instance: Instance) -> list[GrantedWork[Instance, Work]]:
        member = self._members.pop(instance, None)
        if member is None:
            return []
        self._staged = [each for each in self._staged if each[3] is not member]
        heapq.heapify(self._staged)
        if member.is_working:
            self._give_back(member)
        self._available = self._count()
        return self._grant()

    def stage(self, instance: Instance, work: Work) -> list[GrantedWork[Instance, Work]]:
        member = self._members[instance]
        if not member.needs:
            return [GrantedWork(instance, work)]
        member.work.append(work)
        self._stage(instance, member)
        return self._grant()

    def on_finished(self, instance: Instance) -> list[GrantedWork[Instance, Work]]:
        member = self._members.get(instance)
        if member is None or not member.is_working:
            return []
        self._give_back(member)
        self._stage(instance, member)
        return self._grant()

    def withdraw(self, instance: Instance, work: Work) -> list[GrantedWork[Instance, Work]] | None:
        """Remove staged work; return the work granted instead, or None if *work* was granted before."""
        member = self._members.get(instance)
        if member is None or work not in member.work:
            return None
        member.work.remove(work)
        return self._grant()

    def holders_before(self, instance: Instance) -> list[list[Instance]]:
        """For each event that an instance's first staged work waits for: who could cause it by finishing."""
        member = self._members[instance]
        if member.is_working:
            return [[instance]]
        if not member.is_staged:
            return []
        first = self._staged[0][3]  # those behind it wait for it, whatever they need
        return [
            [holder for holder, other in self._members.items() if other.is_working and need in other.needs]
            for need, number in first.needs.items()
            if self._used.get(need, 0) + number > self._available[need]
        ]

    def _stage(self, instance: Instance, member: _Member[Work]) -> None:
        if member.work and not member.is_staged and not member.is_working:
            member.is_staged = True
            weight = member.granted * member.priority
            heapq.heappush(self._staged, (weight, next(self._numbers), instance, member))

    def _grant(self) -> list[GrantedWork[Instance, Work]]:
        grants: list[GrantedWork[Instance, Work]] = []
        while self._staged:
            instance, member = self._staged[0][2:]
            if member.work and not self._has_room(member):
                break
            heapq.heappop(self._staged)
            member.is_staged = False
            if not member.work:  # withdrawn
                continue
            for need, number in member.needs.items():
                self._used[need] = self._used.get(need, 0) + number
            member.is_working = True
            member.granted += 1
            grants.append(GrantedWork(instance, member.work.popleft()))
        return grants

    def _has_room(self, member: _Member[Work]) -> bool:
        return all(self._used.get(need, 0) + number <= self._available[need] for need, number in member.needs.items())

    def _give_back(self, member: _Member[Work]) -> None:
        member.is_working = False
        for need, number in member.needs.items():
            self._used[need] -= number

    def _count(self) -> dict[tuple[int, str], int]:
        """The units of each resource: as the operator limits them, else the most that any instance needs."""
        most: dict[tuple[int, str], int] = {}
        for member in self._members.values():
            for need, number in member.needs.items():
                most[need] = max(most.get(need, 0), number)
        if self._limits:
            most = {need: self._limit(need, number) for need, number in most.items()}
        shared = {name for device, name in most if device == _GLOBAL}
        for device, name in most:
            if device != _GLOBAL and name in shared:
                raise ConfigError(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        return most

    def _limit(self, need: tuple[int, str], number: int) -> int:
        device, name = need
        allowed = max(
            (
                limit.number
                for limit in self._limits
                if limit.name == name and (device == _GLOBAL or limit.device in {device, EVERY_DEVICE})
            ),
            default=0,
        )
        if allowed < number:
            raise ConfigError(
                f'Resource count for "{name}" is limited to {allowed} which will prevent scheduling of one or more '
                f"model instances, the minimum required count is {number}"
            )
        return allowed
