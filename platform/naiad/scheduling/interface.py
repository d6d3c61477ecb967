"""What all schedulers have in common: what they are told, what they decide, and what a request tells them.

A scheduler is a pure state machine: no clock, no processes. Time comes in as nanoseconds of any steady clock. What
it decides comes back as a list of actions, which the caller carries out in order; `next_wakeup` says when it wants
to be asked again without anything having happened.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from naiad.errors import NaiadError
from naiad.protocol.inference import InputTensor
from naiad.scheduling.sequences.states import SequenceState

# Python 3.10's own `NamedTuple` cannot also be `Generic`.
if sys.version_info >= (3, 11):
    from typing import NamedTuple
else:
    from typing_extensions import NamedTuple

__all__ = [
    "Action",
    "Dispatch",
    "Instance",
    "Item",
    "NamedTuple",
    "Rejection",
    "Row",
    "RowDispatch",
    "Schedulable",
    "Scheduler",
    "SchedulerWarning",
]


class Schedulable(Protocol):
    """What a scheduler must know of a request; read once, when it is enqueued or put back."""

    def __hash__(self) -> int: ...

    @property
    def batch_size(self) -> int:
        """Rows it adds to a batch; 1 for a model without a batch dimension."""

    @property
    def shape_key(self) -> Hashable | None:
        """Requests share a batch only if their keys are equal; None shares one with any."""

    @property
    def priority(self) -> int:
        """Priority level, 0 for the model's default."""

    @property
    def timeout_us(self) -> int:
        """Timeout in microseconds, 0 for none."""

    @property
    def correlation_id(self) -> int | str:
        """Sequence id; 0 and "" mean none."""

    @property
    def flags(self) -> int:
        """SEQUENCE_START and SEQUENCE_END."""

    @property
    def prefix(self) -> str:
        """How errors about it begin; asked for only when there is one."""


Item = TypeVar("Item", bound=Schedulable)
Instance = TypeVar("Instance", bound=Hashable)
AnyItem = TypeVar("AnyItem")


class Dispatch(NamedTuple, Generic[Instance, AnyItem]):
    """The decision that *instance* executes *items* now, in one call."""

    instance: Instance
    items: tuple[AnyItem, ...]

    def first(self, number: int) -> Dispatch[Instance, AnyItem]:
        """The same with so many of its items."""
        return Dispatch(self.instance, self.items[:number])


class Row(NamedTuple, Generic[AnyItem]):
    """One row of a batch of sequences.

    Attributes:
        item: The request; None for a slot that has none now. Its row has the inputs of any other row of the batch,
            all zeros, so that the rows after it keep their slots.
        correlation_id: The sequence, which an iterative scheduler may have named; 0 in a row without a request.
        flags: SEQUENCE_START and SEQUENCE_END, as the model shall see them.
        controls: Control tensors to add to the request's inputs. Rows share them: nobody changes them.
        state: What is kept of the sequence, whose tensors are further inputs; None if there is no such thing.
    """

    item: AnyItem | None
    correlation_id: int | str
    flags: int
    controls: tuple[InputTensor, ...]
    state: SequenceState | None = None


class RowDispatch(NamedTuple, Generic[Instance, AnyItem]):
    """The decision that *instance* executes *rows* now, in one call."""

    instance: Instance
    rows: tuple[Row[AnyItem], ...]

    @property
    def items(self) -> tuple[AnyItem, ...]:
        """The requests among the rows."""
        return tuple(row.item for row in self.rows if row.item is not None)

    def first(self, number: int) -> RowDispatch[Instance, AnyItem]:
        """The same with so many of its requests, whose rows stay where they are."""
        places = [place for place, row in enumerate(self.rows) if row.item is not None]
        return RowDispatch(self.instance, self.rows[: places[number - 1] + 1])


class Rejection(NamedTuple, Generic[AnyItem]):
    """The decision that *item* is answered with *error*; the scheduler has forgotten it.

    Errors of queue limits and timeouts are NotReadyError, of cancelling NaiadError with Code.CANCELLED.
    """

    item: AnyItem
    error: NaiadError


class SchedulerWarning(NamedTuple):
    """Something the operator should read in the log."""

    message: str


Action = Dispatch[Instance, AnyItem] | RowDispatch[Instance, AnyItem] | Rejection[AnyItem] | SchedulerWarning


class Scheduler(Protocol[Instance, Item]):
    """Requests that wait and instances that are free.

    `remove_instance` and `withdraw` return no actions though they may cause some (a sequence ends with its instance; a
    slot becomes free): those come with the next call that returns actions, at the latest `wake`, which `next_wakeup`
    then asks for at once.
    """

    @property
    def waiting_count(self) -> int:
        """How many requests are not dispatched yet."""

    def add_instance(self, instance: Instance, now_ns: int = 0) -> Sequence[Action[Instance, Item]]:
        """An instance became ready."""

    def remove_instance(self, instance: Instance) -> None:
        """An instance is gone; what it held is the caller's to fail or to put back."""

    def set_depth(self, instance: Instance, depth: int) -> None:
        """How many dispatches the instance may hold at once; takes effect at the next decision."""

    def enqueue(self, item: Item, now_ns: int, *, alone: bool = False) -> Sequence[Action[Instance, Item]]:
        """A request arrived; *alone* if only an instance that holds nothing may be given it."""

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> Sequence[Action[Instance, Item]]:
        """Requests that were dispatched but never begun come first, in their order.

        Follows a `remove`, or is about a part of the latest dispatch of an instance, which still holds the rest.
        """

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:
        """The latest dispatch could not be carried out now: its items wait, first, until an instance finishes."""

    def withdraw(self, item: Item) -> bool:
        """Take a waiting item out; False where it does not wait (any more)."""

    def on_finished(self, instance: Instance, now_ns: int = 0) -> Sequence[Action[Instance, Item]]:
        """An instance finished its oldest dispatch."""

    def wake(self, now_ns: int) -> Sequence[Action[Instance, Item]]:
        """Time has passed; never wrong to call."""

    def next_wakeup(self) -> int | None:
        """When to call `wake`, None for not before something else happens. It may lie in the past: call at once."""

    def drain(self) -> Iterator[Item]:
        """Take out everything that waits, oldest first."""
