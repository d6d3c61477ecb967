"""The default scheduler: one request per execute call, first come first served, any free instance.

A pure state machine: no clock, no processes. Items and instances are whatever the caller uses; instances are hashable.

An instance may be given further requests while it works on one, so that it need not wait for the host between
them. That pays only where the model takes less time than the host's turn, and costs order where it takes longer
(a request might have run earlier elsewhere); hence `depth`, which the caller sets per instance from what it
measures.

A request made by a model that itself waits for the answer must not lie behind another request of the same instance:
that one may be what the whole chain waits for. Such requests are enqueued `alone`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from naiad.scheduling.instance_loads import InstanceLoads
from naiad.scheduling.interface import Dispatch

__all__ = ["Dispatch", "FifoScheduler"]

Item = TypeVar("Item", bound=Hashable)
Instance = TypeVar("Instance", bound=Hashable)


class FifoScheduler(Generic[Instance, Item]):
    """Requests that wait and instances that are free.

    Attributes:
        waiting: Items not dispatched yet, oldest first.
    """

    def __init__(self) -> None:
        self.waiting: deque[Item] = deque()
        self._instances: InstanceLoads[Instance] = InstanceLoads()
        self._alone: set[Item] = set()

    def __repr__(self) -> str:
        return f"<FifoScheduler waiting={len(self.waiting)} {self._instances!r}>"

    @property
    def waiting_count(self) -> int:
        """How many requests are not dispatched yet."""
        return len(self.waiting)

    def add_instance(self, instance: Instance, now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - the signature of all schedulers
        """An instance became ready."""
        self._instances.add(instance)
        return self._dispatch()

    def remove_instance(self, instance: Instance) -> None:
        """An instance is gone; what it held is the caller's to fail or to put back."""
        self._instances.remove(instance)

    def set_depth(self, instance: Instance, depth: int) -> None:
        """How many requests the instance may hold at once; takes effect at the next decision."""
        self._instances.set_depth(instance, depth)

    def enqueue(self, item: Item, now_ns: int = 0, *, alone: bool = False) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - the signature of all schedulers
        """A request arrived; *alone* if only an instance that holds nothing may be given it."""
        self.waiting.append(item)
        if alone:
            self._alone.add(item)
        return self._dispatch()

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - the signature of all schedulers
        """Requests that were dispatched but never begun; they come first, in their order."""
        self._wait_first(items)
        return self._dispatch()

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:
        """A dispatch could not be carried out now: its items wait again, first, until an instance finishes."""
        self._wait_first(items)
        self._instances.remove_dispatch(instance)
        self._instances.set_depth(instance, 1)

    def withdraw(self, item: Item) -> bool:
        """Take a waiting item out; False where it does not wait (any more)."""
        try:
            self.waiting.remove(item)
        except ValueError:
            return False
        self._alone.discard(item)
        return True

    def on_finished(self, instance: Instance, now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - the signature of all schedulers
        """An instance finished one dispatch."""
        self._instances.remove_dispatch(instance)
        return self._dispatch() if self.waiting else []

    def wake(self, now_ns: int = 0) -> list[Dispatch[Instance, Item]]:  # noqa: ARG002 - see `Scheduler`
        """Ask again: what was withdrawn may have held others up."""
        return self._dispatch()

    def next_wakeup(self) -> None:
        """Nothing here depends on time."""
        return

    def drain(self) -> Iterator[Item]:
        """Take out everything that waits, oldest first."""
        self._alone.clear()
        while self.waiting:
            yield self.waiting.popleft()

    def _wait_first(self, items: tuple[Item, ...]) -> None:
        # Which of them came alone is not remembered once they are dispatched; for all of them to be alone is safe,
        # and such requests are few.
        self._alone.update(items)
        self.waiting.extendleft(reversed(items))

    def _dispatch(self) -> list[Dispatch[Instance, Item]]:
        decisions: list[Dispatch[Instance, Item]] = []
        while self.waiting:
            free = self._instances.least_loaded()
            if free is None:
                break
            instance, load = free
            if self._alone and self.waiting[0] in self._alone:
                if load:
                    break
                self._alone.discard(self.waiting[0])
            self._instances.add_dispatch(instance)
            decisions.append(Dispatch(instance, (self.waiting.popleft(),)))
        return decisions
