"""Dynamic batching: requests of several clients in one execute call.

A batch goes to the instance that holds least. An instance that still works is given a further batch only if that one
is complete: an incomplete one grows while it waits, at no cost, since the instance would not begin it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Generic

from naiad.config.model.model_config import ModelConfig
from naiad.errors import NotReadyError
from naiad.scheduling.dynamic.batch_forming import BatchDecision, BatchRule
from naiad.scheduling.dynamic.queue import QueuePolicy, WaitingQueue
from naiad.scheduling.instance_loads import InstanceLoads
from naiad.scheduling.interface import Action, Dispatch, Instance, Item, Rejection

__all__ = ["DynamicScheduler"]


class DynamicScheduler(Generic[Instance, Item]):
    """Requests that wait in priority levels, and instances that are free; see `Scheduler`."""

    def __init__(
        self,
        rule: BatchRule,
        policy: QueuePolicy | None = None,
        *,
        levels: int = 0,
        default_level: int = 0,
        policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        self._rule = rule
        self._queue: WaitingQueue[Item] = WaitingQueue(
            policy, levels=levels, default_level=default_level, policies=policies
        )
        self._instances: InstanceLoads[Instance] = InstanceLoads()
        self._hold: BatchDecision | None = None  # the batch that waits for more, if whatever comes now comes behind it
        self._held_size = 0
        self._wake_ns: int | None = None

    @classmethod
    def of(cls, config: ModelConfig) -> DynamicScheduler[Instance, Item]:
        """The scheduler that a configuration with `dynamic_batching` asks for; without it, batches of one."""
        batching = config.message.dynamic_batching
        is_batching = config.message.HasField("dynamic_batching")
        return cls(
            BatchRule(
                config.max_batch_size if is_batching else 1,
                batching.preferred_batch_size,
                batching.max_queue_delay_microseconds,
            ),
            QueuePolicy.of(batching.default_queue_policy),
            levels=batching.priority_levels,
            default_level=batching.default_priority_level,
            policies={level: QueuePolicy.of(policy) for level, policy in batching.priority_queue_policy.items()},
        )

    def __repr__(self) -> str:
        return f"<DynamicScheduler {self._queue!r} {self._instances!r}>"

    @property
    def waiting_count(self) -> int:
        """How many requests are not dispatched yet."""
        return len(self._queue)

    def add_instance(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        """An instance became ready."""
        self._instances.add(instance)
        return self._decide(now_ns)

    def remove_instance(self, instance: Instance) -> None:
        """An instance is gone; what it held is the caller's to fail or to put back."""
        self._instances.remove(instance)

    def set_depth(self, instance: Instance, depth: int) -> None:
        """How many batches the instance may hold at once; takes effect at the next decision."""
        self._instances.set_depth(instance, depth)

    def enqueue(self, item: Item, now_ns: int, *, alone: bool = False) -> list[Action[Instance, Item]]:
        """A request arrived."""
        deadline = self._queue.next_deadline()
        if deadline is not None and deadline <= now_ns:  # makes room, perhaps
            return [*self._decide(now_ns), *self._push(item, now_ns, alone=alone)]
        return self._push(item, now_ns, alone=alone)

    def _push(self, item: Item, now_ns: int, *, alone: bool) -> list[Action[Instance, Item]]:
        try:
            entry = self._queue.push(item, now_ns, alone=alone)
        except NotReadyError as error:
            return [Rejection(item, error)]
        hold = self._hold
        if hold is not None and entry.key == hold.key and self._queue.is_plain:
            # Most requests that come while a batch waits for its delay change nothing: look at this one alone.
            self._held_size += entry.size
            if self._held_size < hold.next_size and (self._wake_ns is None or now_ns < self._wake_ns):
                return []
        return self._decide(now_ns)

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> list[Action[Instance, Item]]:
        """Requests that were dispatched but never begun; they come first, in their order."""
        self._queue.push_first(items)
        return self._decide(now_ns)

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:
        """A dispatch could not be carried out now: its items wait again, first, until an instance finishes."""
        self._queue.push_first(items)
        self._instances.remove_dispatch(instance)
        self._instances.set_depth(instance, 1)
        self._hold = None

    def withdraw(self, item: Item) -> bool:
        """Take a waiting item out; False where it does not wait (any more)."""
        if not self._queue.discard(item):
            return False
        self._hold = None
        self._wake_ns = 0  # those behind it may be a batch now
        return True

    def on_finished(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        """An instance finished one batch."""
        self._instances.remove_dispatch(instance)
        return self._decide(now_ns)

    def wake(self, now_ns: int) -> list[Action[Instance, Item]]:
        """Time has passed."""
        return self._decide(now_ns)

    def next_wakeup(self) -> int | None:
        """When a request will have waited too long, or a batch long enough."""
        deadline = self._queue.next_deadline()
        if deadline is None or self._wake_ns is None:
            return self._wake_ns if deadline is None else deadline
        return min(deadline, self._wake_ns)

    def deadline_of(self, item: Item, queued_ns: int) -> int | None:
        """When a request that came at *queued_ns* will have waited so long that it is refused; None for never."""
        return self._queue.deadline_of(item, queued_ns)

    def drain(self) -> Iterator[Item]:
        """Take out everything that waits, in the order of its execution."""
        while self._queue:
            yield from self._queue.take(1)
        self._hold = self._wake_ns = None

    def _decide(self, now_ns: int) -> list[Action[Instance, Item]]:
        actions: list[Action[Instance, Item]] = [
            Rejection(item, NotReadyError("Request timeout expired")) for item in self._queue.expire(now_ns)
        ]
        self._hold = self._wake_ns = None
        while self._queue:
            dispatch = self._next(now_ns)
            if dispatch is None:
                break
            actions.append(dispatch)
        return actions

    def _next(self, now_ns: int) -> Dispatch[Instance, Item] | None:
        free = self._instances.least_loaded()
        if free is None:
            return None
        instance, load = free
        if load and self._queue.size < self._rule.largest:
            return None
        formed = self._rule.form(self._queue, now_ns)
        if not formed.number:
            if not load:
                self._wait(formed)
            return None
        if load and not (formed.complete and self._may_share(formed.number)):
            return None
        self._instances.add_dispatch(instance)
        return Dispatch(instance, self._queue.take(formed.number))

    def _wait(self, formed: BatchDecision) -> None:
        self._wake_ns = formed.wake_ns
        if self._queue.is_plain:
            self._hold, self._held_size = formed, formed.size

    def _may_share(self, number: int) -> bool:
        return not any(entry.alone for entry in islice(self._queue, number))
