"""The interface of all schedulers: the events they receive, the actions they return, and what they know of a request.

A scheduler is a pure state machine, without a clock and without I/O. The caller passes events (a request arrived, an
instance finished) with the time in nanoseconds of any monotonic clock. The scheduler returns a list of actions, which
the caller performs in order. `next_wakeup` returns when the scheduler must be called again if no event happens before,
for example because a queue timeout expires.

`factory` chooses the scheduler of a model:

    configuration             scheduler                             execute receives
    none                      fifo.FifoScheduler                    one request
    dynamic_batching          dynamic.batcher.DynamicScheduler      requests of any clients, up to max_batch_size rows
    sequence_batching         sequences.batcher.SequenceScheduler   one request each of several sequences
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from naiad.core.errors import NaiadError
from naiad.engine.scheduling.sequences.states import SequenceState
from naiad.protocol.inference import InputTensor

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
    "Sequences",
    "SingleDispatch",
]


class Schedulable(Protocol):
    """What a scheduler knows of a request; read once, when the request is enqueued or requeued."""

    def __hash__(self) -> int: ...

    @property
    def batch_size(self) -> int:
        """Number of rows in a batch; 1 for a model without a batch dimension."""

    @property
    def shape_key(self) -> Hashable | None:
        """Requests share a batch only if their keys are equal; None is compatible with every key."""

    @property
    def priority(self) -> int:
        """Priority level, 1 is the highest; 0 for the model's default."""

    @property
    def timeout_us(self) -> int:
        """Queue timeout in microseconds; 0 for none."""

    @property
    def correlation_id(self) -> int | str:
        """Id of the sequence; 0 or "" for none."""

    @property
    def flags(self) -> int:
        """SEQUENCE_START and SEQUENCE_END."""

    @property
    def prefix(self) -> str:
        """Beginning of errors about this request; only read when there is an error."""


Item = TypeVar("Item", bound=Schedulable)
Instance = TypeVar("Instance", bound=Hashable)
AnyItem = TypeVar("AnyItem")
Instance_contra = TypeVar("Instance_contra", bound=Hashable, contravariant=True)
Item_contra = TypeVar("Item_contra", bound=Schedulable, contravariant=True)


class Dispatch(NamedTuple, Generic[Instance, AnyItem]):
    """Action: *instance* executes *items* now, in one call of `execute`."""

    instance: Instance
    items: tuple[AnyItem, ...]

    def first(self, number: int) -> Dispatch[Instance, AnyItem]:
        """The same action with its first *number* items only."""
        return Dispatch(self.instance, self.items[:number])


class Row(NamedTuple, Generic[AnyItem]):
    """One row of a batch of sequences."""

    # The request; None for a padding row. A padding row represents a slot without a request, so that the following rows
    # keep their positions; its inputs are those of another row, filled with zeros.
    item: AnyItem | None
    correlation_id: int | str  # id of the sequence, which an iterative scheduler may have generated; 0 in a padding row
    flags: int  # SEQUENCE_START and SEQUENCE_END, as passed to the model
    # Control tensors to add to the request's inputs. Rows share them; do not modify them.
    controls: tuple[InputTensor, ...]
    # The sequence's implicit state, whose tensors are further inputs; None without one.
    state: SequenceState | None = None


class RowDispatch(NamedTuple, Generic[Instance, AnyItem]):
    """Action: *instance* executes *rows* now, in one call of `execute`."""

    instance: Instance
    rows: tuple[Row[AnyItem], ...]

    @property
    def items(self) -> tuple[AnyItem, ...]:
        return tuple(row.item for row in self.rows if row.item is not None)

    def first(self, number: int) -> RowDispatch[Instance, AnyItem]:
        """The same action with its first *number* requests only; their rows keep their positions."""
        positions = [position for position, row in enumerate(self.rows) if row.item is not None]
        return RowDispatch(self.instance, self.rows[: positions[number - 1] + 1])


class Rejection(NamedTuple, Generic[AnyItem]):
    """Action: *item* fails with *error*; the scheduler no longer holds it.

    A full queue and an expired timeout are NotReadyError, a cancelled sequence is NaiadError with Code.CANCELLED.
    """

    item: AnyItem
    error: NaiadError


class SchedulerWarning(NamedTuple):
    """Action: log a warning for the operator."""

    message: str


Action = Dispatch[Instance, AnyItem] | RowDispatch[Instance, AnyItem] | Rejection[AnyItem] | SchedulerWarning


class Sequences(Protocol[Instance_contra, Item_contra]):
    """What a scheduler can do beyond `Scheduler` if its requests belong to sequences."""

    @property
    def open_count(self) -> int:
        """Number of sequences that are open."""

    def has_sequence(self, correlation_id: int | str) -> bool:
        """Whether a sequence of that id is open."""

    def is_in_use(self, instance: Instance_contra) -> bool:
        """Whether an instance has sequences."""

    def reschedule(self, item: Item_contra) -> None:
        """Queue a request again that its model, being executed, asks for once more (iterative sequences)."""

    def close(self) -> None:
        """Reject new sequences from now on; open ones continue."""


class Scheduler(Protocol[Instance, Item]):
    """Queued requests, and the instances of a model.

    What only some schedulers can do is asked of `singly` and `sequences`.

    `remove_instance` and `withdraw` return no actions, although they may cause some: a sequence fails with its
    instance, a slot becomes free. The next call of another method returns these actions; until then `next_wakeup`
    returns a time in the past, so that the caller calls `wake` at once.
    """

    @property
    def singly(self) -> SingleDispatch[Instance, Item] | None:
        """Itself, if it dispatches each request by itself, in the order of arrival."""

    @property
    def sequences(self) -> Sequences[Instance, Item] | None:
        """Itself, if requests belong to sequences."""

    @property
    def waiting_count(self) -> int:
        """Number of requests that are queued."""

    def add_instance(self, instance: Instance, now_ns: int = 0) -> Sequence[Action[Instance, Item]]:
        """An instance became ready; it is idle."""

    def remove_instance(self, instance: Instance) -> None:
        """An instance exited. The caller fails or requeues the requests that were dispatched to it."""

    def set_depth(self, instance: Instance, depth: int) -> None:
        """Allow an instance to hold up to *depth* dispatches at once, from the next decision on."""

    def enqueue(self, item: Item, now_ns: int, *, needs_idle: bool = False) -> Sequence[Action[Instance, Item]]:
        """A request arrived. With *needs_idle*, it is dispatched only to an instance that holds no other request."""

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> Sequence[Action[Instance, Item]]:
        """Queue dispatched requests whose execution did not begin, before all others and in their order.

        Called after `remove_instance`, or for the last items of an instance's latest dispatch, whose first items were
        executed.
        """

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:
        """Take back an instance's latest dispatch, which failed; its items wait until an instance finishes."""

    def withdraw(self, item: Item) -> bool:
        """Remove a queued item, for example a cancelled one; False if it is not queued (any more)."""

    def on_finished(self, instance: Instance, now_ns: int = 0) -> Sequence[Action[Instance, Item]]:
        """An instance finished its oldest dispatch."""

    def deadline_of(self, item: Item, queued_ns: int) -> int | None:
        """When a request that arrived at *queued_ns* is rejected for its timeout; None for never.

        Asked for a request that was dispatched, while its instance waits for resources.
        """

    def wake(self, now_ns: int) -> Sequence[Action[Instance, Item]]:
        """Decide again, because time has passed. It is never wrong to call this."""

    def next_wakeup(self) -> int | None:
        """When to call `wake`; None: not before the next event. A time in the past: call it at once."""

    def drain(self) -> Iterator[Item]:
        """Remove all queued items and yield them, in the order of their execution."""


class SingleDispatch(Scheduler[Instance, Item], Protocol[Instance, Item]):
    """A scheduler that dispatches each request by itself, in the order of arrival.

    A request that it has queued gains nothing by waiting, so it may move to another process, or be in an instance's
    channel before the one ahead of it has ended. It neither delays nor rejects requests, so nothing has to be looked
    at in one that an idle instance can take.
    """

    @property
    def waiting(self) -> Collection[Item]:
        """The queued requests, oldest first; the same object at each call."""

    @property
    def instance_count(self) -> int:
        """Number of instances that take requests."""

    def next_instance(self) -> tuple[Instance, int] | None:
        """The instance that would get a request that arrives now, with its load; None if the request would wait."""

    def dispatch_at_once(self) -> Instance | None:
        """Count a dispatch of a request that has just arrived; the instance. None if it has to be enqueued."""
