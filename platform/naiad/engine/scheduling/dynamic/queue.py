"""The queue of a dynamic batcher: priority levels, each with a maximum size and a timeout.

Documented in Triton's model_configuration.md ("Priority Levels", "Queue Policy"); rules: CORE src/scheduler_utils.cc.
Level 1 is executed first. When a request's timeout expires, its level's policy either rejects it or delays it: a
delayed request comes behind all requests of its level that are in time, and has no timeout any more.

The order of execution is: requeued requests, then for each level its requests in time, then its delayed ones. All
operations take constant time (logarithmic for timeouts), however many requests wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Generic, TypeVar

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import QueueFullError
from naiad.engine.scheduling.interface import Schedulable

Item = TypeVar("Item", bound=Schedulable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """The limits of a priority level."""

    max_size: int = 0
    timeout_us: int = 0
    delays_expired: bool = False  # whether an expired request is delayed instead of rejected
    allow_override: bool = False  # whether a request may name a shorter timeout than `timeout_us`

    @classmethod
    def of(cls, message: pb.ModelQueuePolicy) -> QueuePolicy:
        return cls(
            max_size=message.max_queue_size,
            timeout_us=message.default_timeout_microseconds,
            delays_expired=message.timeout_action == pb.ModelQueuePolicy.DELAY,
            allow_override=message.allow_timeout_override,
        )

    def timeout_of(self, item: Schedulable) -> int:
        """The timeout of a request: its own counts only if it is shorter than that of the policy."""
        if self.allow_override and 0 < item.timeout_us < self.timeout_us:
            return item.timeout_us
        return self.timeout_us


class QueuedRequest(Generic[Item]):
    """A request that waits."""

    __slots__ = ("container", "item", "key", "level", "needs_idle", "queued_ns", "size")

    def __init__(self, item: Item, level: int, queued_ns: int, *, needs_idle: bool) -> None:
        self.item = item
        self.size = item.batch_size
        self.key: Hashable | None = item.shape_key
        # Time of its arrival; 0 for a requeued one, so that its batch does not wait for a delay again.
        self.queued_ns = queued_ns
        self.needs_idle = needs_idle  # whether it may only be dispatched to an instance that holds no other batch
        self.level = level
        # The ordered dict it is in; None once it has left the queue.
        self.container: OrderedDict[Item, QueuedRequest[Item]] | None = None


class _Level(Generic[Item]):
    """One priority level: requests in time, and behind them those that were delayed."""

    __slots__ = ("delayed", "in_time", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.in_time: OrderedDict[Item, QueuedRequest[Item]] = OrderedDict()
        self.delayed: OrderedDict[Item, QueuedRequest[Item]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)


class WaitingQueue(Generic[Item]):
    """Queued requests in the order of their execution."""

    def __init__(
        self,
        policy: QueuePolicy | None = None,
        *,
        levels: int = 0,
        default_level: int = 0,
        policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        self.size = 0
        self._policy = policy or QueuePolicy()
        self._policies = dict(policies or {}) if levels else {}
        self._level_count = levels
        self._default = default_level if levels else 1
        self._first: OrderedDict[Item, QueuedRequest[Item]] = OrderedDict()
        self._entries: dict[Item, QueuedRequest[Item]] = {}
        self._numbers = count()
        self._deadlines: list[tuple[int, int, QueuedRequest[Item]]] = []
        self._levels: dict[int, _Level[Item]] = {}
        self._order: list[int] = []
        self._level(self._default)

    def __repr__(self) -> str:
        return f"<WaitingQueue waiting={len(self)} size={self.size} levels={self._order}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QueuedRequest[Item]]:
        levels = (self._levels[number] for number in self._order)
        return chain(
            self._first.values(),
            chain.from_iterable(chain(level.in_time.values(), level.delayed.values()) for level in levels),
        )

    @property
    def is_plain(self) -> bool:
        """Whether a request that is pushed now comes last: one level, and no delayed requests."""
        return len(self._order) == 1 and not self._levels[self._default].delayed

    def push(self, item: Item, now_ns: int, *, needs_idle: bool = False) -> QueuedRequest[Item]:
        """Add a request behind those of its priority level; raise QueueFullError if that is full."""
        number = self._level_of(item.priority)
        level = self._level(number)
        policy = level.policy
        if policy.max_size and len(level) >= policy.max_size:
            raise QueueFullError(f"{item.prefix}Exceeds maximum queue size")
        entry = QueuedRequest(item, number, now_ns, needs_idle=needs_idle)
        self._insert(entry, level.in_time)
        if policy.timeout_us:
            self._add_deadline(entry, now_ns + policy.timeout_of(item) * 1000)
        return entry

    def push_first(self, items: tuple[Item, ...]) -> None:
        """Add requests before all others, in their order and without timeout; they need an idle instance."""
        for item in reversed(items):
            self._insert(QueuedRequest(item, 0, 0, needs_idle=True), self._first)
            self._first.move_to_end(item, last=False)

    def take(self, number: int) -> tuple[Item, ...]:
        items = []
        for entry in list(islice(self, number)):
            items.append(entry.item)
            self._remove(entry)
        return tuple(items)

    def discard(self, item: Item) -> bool:
        entry = self._entries.get(item)
        if entry is None:
            return False
        self._remove(entry)
        return True

    def expire(self, now_ns: int) -> list[Item]:
        """Remove and return expired requests that are rejected, earliest deadline first; delay the others."""
        expired: list[Item] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            entry = heapq.heappop(self._deadlines)[2]
            if entry.container is None:
                continue
            if self._levels[entry.level].policy.delays_expired:
                del entry.container[entry.item]
                entry.container = self._levels[entry.level].delayed
                entry.container[entry.item] = entry
            else:
                self._remove(entry)
                expired.append(entry.item)
        return expired

    def next_deadline(self) -> int | None:
        while self._deadlines and self._deadlines[0][2].container is None:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def deadline_of(self, item: Item, queued_ns: int) -> int | None:
        """When a request that arrived at *queued_ns* is rejected for its timeout; None for never."""
        policy = self._policies.get(self._level_of(item.priority), self._policy)
        if policy.delays_expired or not policy.timeout_us:
            return None
        return queued_ns + policy.timeout_of(item) * 1000

    def _insert(self, entry: QueuedRequest[Item], container: OrderedDict[Item, QueuedRequest[Item]]) -> None:
        entry.container = container
        container[entry.item] = self._entries[entry.item] = entry
        self.size += entry.size

    def _remove(self, entry: QueuedRequest[Item]) -> None:
        assert entry.container is not None
        del entry.container[entry.item]
        del self._entries[entry.item]
        entry.container = None
        self.size -= entry.size
        if entry.level and entry.level != self._default:
            self._remove_if_empty(entry.level)

    def _add_deadline(self, entry: QueuedRequest[Item], deadline_ns: int) -> None:
        heapq.heappush(self._deadlines, (deadline_ns, next(self._numbers), entry))
        # Requests that left the queue stay on the heap until their deadline. Remove them before they are the majority.
        if len(self._deadlines) > 2 * len(self._entries) + 64:
            self._deadlines = [each for each in self._deadlines if each[2].container is not None]
            heapq.heapify(self._deadlines)

    def _level_of(self, priority: int) -> int:
        return priority if 0 < priority <= self._level_count else self._default

    def _level(self, number: int) -> _Level[Item]:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._policies.get(number, self._policy))
            self._order = sorted(self._levels)
        return level

    def _remove_if_empty(self, number: int) -> None:
        # A configuration may have up to 2**64 - 1 levels; only those in use are kept.
        if not self._levels[number]:
            del self._levels[number]
            self._order.remove(number)
