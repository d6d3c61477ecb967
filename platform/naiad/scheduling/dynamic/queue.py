"""The queue of a dynamic batcher: priority levels, each with its own limit of size and time.

Every operation costs the same however many requests wait, but for looking at those that are to form the batch.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Generic, TypeVar

from naiad.config.model import model_config_pb2 as pb
from naiad.errors import NotReadyError
from naiad.scheduling.interface import Schedulable

__all__ = ["QueuePolicy", "QueuedRequest", "WaitingQueue"]

Item = TypeVar("Item", bound=Schedulable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """What limits a priority level.

    Attributes:
        max_size: How many requests may wait; 0 for any number.
        timeout_us: How long a request may wait; 0 for ever.
        delays: A request that waited too long goes behind those that did not, instead of being refused.
        allow_override: A request may name a shorter timeout than `timeout_us`.
    """

    max_size: int = 0
    timeout_us: int = 0
    delays: bool = False
    allow_override: bool = False

    @classmethod
    def of(cls, message: pb.ModelQueuePolicy) -> QueuePolicy:
        """The policy as a configuration gives it."""
        return cls(
            max_size=message.max_queue_size,
            timeout_us=message.default_timeout_microseconds,
            delays=message.timeout_action == pb.ModelQueuePolicy.DELAY,
            allow_override=message.allow_timeout_override,
        )

    def timeout_of(self, item: Schedulable) -> int:
        """The timeout of a request: its own counts only where it is shorter (CORE src/scheduler_utils.cc)."""
        if self.allow_override and 0 < item.timeout_us < self.timeout_us:
            return item.timeout_us
        return self.timeout_us


class QueuedRequest(Generic[Item]):
    """A request that waits.

    Attributes:
        item: The request.
        size: Rows it adds to a batch.
        key: Its shape key.
        queued_ns: When it came; 0 for one that was put back, which has waited long enough.
        alone: It may be given only to an instance that holds nothing.
        level: Its priority level; 0 where it comes before all levels.
        home: The queue it is in; None once it has left.
    """

    __slots__ = ("alone", "home", "item", "key", "level", "queued_ns", "size")

    def __init__(self, item: Item, level: int, queued_ns: int, *, alone: bool) -> None:
        self.item = item
        self.size = max(item.batch_size, 1)
        self.key: Hashable | None = item.shape_key
        self.queued_ns = queued_ns
        self.alone = alone
        self.level = level
        self.home: OrderedDict[Item, QueuedRequest[Item]] | None = None


class _Level(Generic[Item]):
    """One priority level: requests in time, and behind them those that waited too long."""

    __slots__ = ("delayed", "in_time", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.in_time: OrderedDict[Item, QueuedRequest[Item]] = OrderedDict()
        self.delayed: OrderedDict[Item, QueuedRequest[Item]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)


class WaitingQueue(Generic[Item]):
    """Requests in the order in which they are to be executed.

    Attributes:
        size: The batch sizes of all of them together.
    """

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
        """Whether whatever is pushed now comes last."""
        return len(self._order) == 1 and not self._levels[self._default].delayed

    def push(self, item: Item, now_ns: int, *, alone: bool = False) -> QueuedRequest[Item]:
        """Let a request wait.

        Raises:
            NotReadyError: If its level is full.
        """
        number = self._level_of(item.priority)
        level = self._level(number)
        policy = level.policy
        if policy.max_size and len(level) >= policy.max_size:
            raise NotReadyError(f"{item.prefix}Exceeds maximum queue size")
        entry = QueuedRequest(item, number, now_ns, alone=alone)
        self._put(entry, level.in_time)
        if policy.timeout_us:
            self._add_deadline(entry, now_ns + policy.timeout_of(item) * 1000)
        return entry

    def push_first(self, items: tuple[Item, ...]) -> None:
        """Let requests wait before all others, in their order, without limit of time; each alone."""
        for item in reversed(items):
            self._put(QueuedRequest(item, 0, 0, alone=True), self._first)
            self._first.move_to_end(item, last=False)

    def take(self, number: int) -> tuple[Item, ...]:
        """Take the first out."""
        entries = list(islice(self, number))
        for entry in entries:
            self._drop(entry)
        return tuple(entry.item for entry in entries)

    def discard(self, item: Item) -> bool:
        """Take one out; False if it is not there."""
        entry = self._entries.get(item)
        if entry is None:
            return False
        self._drop(entry)
        return True

    def expire(self, now_ns: int) -> list[Item]:
        """Take out what waited too long, oldest deadline first; what is to be delayed goes behind its level."""
        expired: list[Item] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            entry = heapq.heappop(self._deadlines)[2]
            if entry.home is None:
                continue
            if self._levels[entry.level].policy.delays:
                del entry.home[entry.item]
                entry.home = self._levels[entry.level].delayed
                entry.home[entry.item] = entry
            else:
                self._drop(entry)
                expired.append(entry.item)
        return expired

    def next_deadline(self) -> int | None:
        """When something will have waited too long."""
        while self._deadlines and self._deadlines[0][2].home is None:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def deadline_of(self, item: Item, queued_ns: int) -> int | None:
        """When a request that came at *queued_ns* will have waited so long that it is refused; None for never."""
        policy = self._policies.get(self._level_of(item.priority), self._policy)
        if policy.delays or not policy.timeout_us:
            return None
        return queued_ns + policy.timeout_of(item) * 1000

    def _put(self, entry: QueuedRequest[Item], home: OrderedDict[Item, QueuedRequest[Item]]) -> None:
        entry.home = home
        home[entry.item] = self._entries[entry.item] = entry
        self.size += entry.size

    def _drop(self, entry: QueuedRequest[Item]) -> None:
        assert entry.home is not None
        del entry.home[entry.item]
        del self._entries[entry.item]
        entry.home = None
        self.size -= entry.size
        if entry.level:
            self._tidy(entry.level)

    def _add_deadline(self, entry: QueuedRequest[Item], deadline_ns: int) -> None:
        heapq.heappush(self._deadlines, (deadline_ns, next(self._numbers), entry))
        # Those that left in time stay on the heap till then, which may be long: sweep before they are the most.
        if len(self._deadlines) > 2 * len(self._entries) + 64:
            self._deadlines = [each for each in self._deadlines if each[2].home is not None]
            heapq.heapify(self._deadlines)

    def _level_of(self, priority: int) -> int:
        return priority if 0 < priority <= self._level_count else self._default

    def _level(self, number: int) -> _Level[Item]:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._policies.get(number, self._policy))
            self._order = sorted(self._levels)
        return level

    def _tidy(self, number: int) -> None:
        # There may be 2**64 levels; keep those that are in use.
        if number != self._default and not self._levels[number]:
            del self._levels[number]
            self._order.remove(number)
