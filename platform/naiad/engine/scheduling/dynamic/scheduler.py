"""The dynamic batcher (`dynamic_batching`): requests of several clients in one call of `execute`.

Requests wait in `queue.WaitingQueue`, which orders them by priority level and enforces limits and timeouts.
`batch_rule.BatchRule` decides how many of them form the next batch, and whether it waits for more. This class
combines both with the loads of the instances:

- A batch goes to the instance of least load.
- An instance that still executes gets a further batch only if that batch is complete. An incomplete one grows while it
  waits, at no cost: the instance would not begin it earlier.
- While a batch waits for its delay, most arriving requests do not change the decision. `_held` remembers the decision,
  so that such a request is only queued (a full decision walks over all requests of the batch).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Generic

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NotReadyError
from naiad.engine.scheduling.dynamic.batch_rule import BatchDecision, BatchRule
from naiad.engine.scheduling.dynamic.queue import QueuePolicy, WaitingQueue
from naiad.engine.scheduling.instance_loads import InstanceLoads
from naiad.engine.scheduling.interface import Action, Dispatch, Instance, Item, Rejection

# Timeouts that are shorter always expire, also with an idle instance: the reference's batching thread has not seen a
# request before, and clients test their handling of timeouts with one of a few microseconds.
_DISPATCH_NS = 10_000


class DynamicScheduler(Generic[Instance, Item]):
    """The queue of a model with dynamic batching, and its instances; see `Scheduler`."""

    singly = None
    sequences = None

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
        # The decision about a batch that waits and has all queued requests; None if there is none.
        self._held: BatchDecision | None = None
        self._wake_ns: int | None = None

    @classmethod
    def of(cls, config: ModelConfig) -> DynamicScheduler[Instance, Item]:
        """The scheduler of a configuration with `dynamic_batching`; without it, one with batches of one request."""
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
        return len(self._queue)

    def add_instance(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        self._instances.add(instance)
        return self._decide(now_ns)

    def remove_instance(self, instance: Instance) -> None:
        self._instances.remove(instance)

    def set_depth(self, instance: Instance, depth: int) -> None:
        self._instances.set_depth(instance, depth)

    def enqueue(self, item: Item, now_ns: int, *, needs_idle: bool = False) -> list[Action[Instance, Item]]:
        deadline = self._queue.next_deadline()
        if deadline is not None and deadline <= now_ns:  # expired requests may make room in a full level
            return [*self._decide(now_ns), *self._push(item, now_ns, needs_idle=needs_idle)]
        return self._push(item, now_ns, needs_idle=needs_idle)

    def _push(self, item: Item, now_ns: int, *, needs_idle: bool) -> list[Action[Instance, Item]]:
        try:
            entry = self._queue.push(item, now_ns, needs_idle=needs_idle)
        except NotReadyError as error:
            return [Rejection(item, error)]
        deadline = self._queue.next_deadline()
        if deadline is not None and now_ns < deadline <= now_ns + _DISPATCH_NS:
            return []  # `wake` rejects or delays it at its deadline, which has passed before an instance could begin
        held = self._held
        if held is not None and entry.key == held.key and self._queue.is_plain:
            if self._queue.size < held.next_size and now_ns < held.wake_ns:
                return []
        elif self._next_instance() is None:  # most requests while the instances are busy
            return []
        return self._decide(now_ns)

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> list[Action[Instance, Item]]:
        self._queue.push_first(items)
        return self._decide(now_ns)

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:
        self._queue.push_first(items)
        self._instances.remove_dispatch(instance)
        self._instances.set_depth(instance, 1)
        self._held = None

    def withdraw(self, item: Item) -> bool:
        if not self._queue.discard(item):
            return False
        self._held, self._wake_ns = None, 0  # without it, those behind it may form a batch now
        return True

    def on_finished(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        self._instances.remove_dispatch(instance)
        return self._decide(now_ns)

    def wake(self, now_ns: int) -> list[Action[Instance, Item]]:
        return self._decide(now_ns)

    def next_wakeup(self) -> int | None:
        deadline = self._queue.next_deadline()
        if deadline is None or self._wake_ns is None:
            return self._wake_ns if deadline is None else deadline
        return min(deadline, self._wake_ns)

    def deadline_of(self, item: Item, queued_ns: int) -> int | None:
        return self._queue.deadline_of(item, queued_ns)

    def drain(self) -> Iterator[Item]:
        self._held = self._wake_ns = None
        yield from self._queue.take(len(self._queue))

    def _decide(self, now_ns: int) -> list[Action[Instance, Item]]:
        actions: list[Action[Instance, Item]] = [
            Rejection(item, NotReadyError("Request timeout expired")) for item in self._queue.expire(now_ns)
        ]
        self._held = self._wake_ns = None
        while self._queue:
            dispatch = self._next_dispatch(now_ns)
            if dispatch is None:
                break
            actions.append(dispatch)
        return actions

    def _next_instance(self) -> tuple[Instance, int] | None:
        """The instance that may get a batch of what is queued, with its load; None if what is queued has to wait."""
        free = self._instances.least_loaded()
        return None if free is None or (free[1] and self._queue.size < self._rule.largest) else free

    def _next_dispatch(self, now_ns: int) -> Dispatch[Instance, Item] | None:
        free = self._next_instance()
        if free is None:
            return None
        instance, load = free
        decision = self._rule.decide(self._queue, now_ns)
        if not decision.request_count:
            if not load:
                self._held, self._wake_ns = decision, decision.wake_ns
            return None
        if load and not (decision.is_complete and self._can_follow_other_work(decision.request_count)):
            return None
        self._instances.add_dispatch(instance)
        return Dispatch(instance, self._queue.take(decision.request_count))

    def _can_follow_other_work(self, number: int) -> bool:
        return not any(entry.needs_idle for entry in islice(self._queue, number))
