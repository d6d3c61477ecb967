"""The default scheduler: one request per call of `execute`, first in first out, to the least loaded instance.

An instance of depth n may hold n requests: while it executes one, the next ones are already in its channel, so that
it does not idle for a round trip through the host. This pays where `execute` takes less time than that round trip. For
slower models it would delay requests: one that is dispatched behind another cannot move to an instance that becomes
free earlier. The caller therefore sets the depth of each instance from measured execution times and from what waits.

A request that a model sends to another model (BLS) must not wait behind another request of the same instance: that one
may itself wait for the calling model, which would be a deadlock. Such requests are enqueued with `needs_idle`, and the
requests behind one wait with it, to keep the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from naiad.engine.scheduling.instance_loads import InstanceLoads
from naiad.engine.scheduling.interface import Dispatch

Item = TypeVar("Item", bound=Hashable)
Instance = TypeVar("Instance", bound=Hashable)


class FifoScheduler(Generic[Instance, Item]):
    """A queue and the instances; see `Scheduler` and `SingleDispatch`."""

    sequences = None

    def __init__(self) -> None:
        self.waiting: deque[Item] = deque()
        self._instances: InstanceLoads[Instance] = InstanceLoads()
        self._needs_idle: set[Item] = set()

    def __repr__(self) -> str:
        return f"<FifoScheduler waiting={len(self.waiting)} {self._instances!r}>"

    @property
    def singly(self) -> FifoScheduler[Instance, Item]:
        return self

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    @property
    def instance_count(self) -> int:
        return len(self._instances)

    def next_instance(self) -> tuple[Instance, int] | None:
        return None if self.waiting else self._instances.least_loaded()

    def add_instance(self, instance: Instance, now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - `Scheduler` has it
        self._instances.add(instance)
        return self._dispatch()

    def remove_instance(self, instance: Instance) -> None:
        self._instances.remove(instance)

    def set_depth(self, instance: Instance, depth: int) -> None:
        self._instances.set_depth(instance, depth)

    def enqueue(self, item: Item, now_ns: int = 0, *, needs_idle: bool = False) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - `Scheduler` has it
        if not self.waiting and not needs_idle:  # most requests: nothing to order
            instance = self._instances.dispatch_to_least_loaded()
            if instance is not None:
                return [Dispatch(instance, (item,))]
        self.waiting.append(item)
        if needs_idle:
            self._needs_idle.add(item)
        return self._dispatch()

    def dispatch_at_once(self) -> Instance | None:
        return None if self.waiting else self._instances.dispatch_to_least_loaded()

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - `Scheduler` has it
        self._push_front(items)
        return self._dispatch()

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:
        self._push_front(items)
        self._instances.remove_dispatch(instance)
        self._instances.set_depth(instance, 1)

    def withdraw(self, item: Item) -> bool:
        try:
            self.waiting.remove(item)
        except ValueError:
            return False
        self._needs_idle.discard(item)
        return True

    def on_finished(self, instance: Instance, now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - `Scheduler` has it
        self._instances.remove_dispatch(instance)
        return self._dispatch() if self.waiting else []

    def deadline_of(self, item: Item, queued_ns: int) -> None:  # noqa: ARG002 - `Scheduler` has it
        return

    def wake(self, now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - see `Scheduler`
        """Decide again: a withdrawn request may have blocked those behind it."""
        return self._dispatch()

    def next_wakeup(self) -> None:
        """None: no decision depends on time."""
        return

    def drain(self) -> Iterator[Item]:
        self._needs_idle.clear()
        while self.waiting:
            yield self.waiting.popleft()

    def _push_front(self, items: tuple[Item, ...]) -> None:
        # Which of them needed an idle instance is not stored after the dispatch. Requiring it of all is safe, and
        # requeued requests are few.
        self._needs_idle.update(items)
        self.waiting.extendleft(reversed(items))

    def _dispatch(self) -> list[Dispatch[Instance, Item]]:
        decisions: list[Dispatch[Instance, Item]] = []
        while self.waiting:
            free = self._instances.least_loaded()
            if free is None:
                break
            instance, load = free
            if self._needs_idle and self.waiting[0] in self._needs_idle:
                if load:
                    break
                self._needs_idle.discard(self.waiting[0])
            self._instances.add_dispatch(instance)
            decisions.append(Dispatch(instance, (self.waiting.popleft(),)))
        return decisions
