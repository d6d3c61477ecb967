"""Sequences, the slots they occupy, and which of an instance's slots form the next batch."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, Protocol

from naiad.scheduling.dynamic.batch_forming import BatchRule
from naiad.scheduling.interface import Instance, Item, NamedTuple
from naiad.scheduling.sequences.states import SequenceState

__all__ = ["Direct", "InstanceSlots", "Oldest", "Sequence", "SequenceBatch", "SequenceRequest", "Slot"]


class SequenceRequest(Generic[Item]):
    """One request of a sequence while it waits.

    Attributes:
        item: The request.
        flags: START and END as the model shall see them.
        queued_ns: When it came, or came to be the next of its sequence.
        size: Rows it adds to a batch.
        key: Its shape key.
    """

    __slots__ = ("flags", "item", "key", "queued_ns", "size")

    def __init__(self, item: Item, flags: int, queued_ns: int) -> None:
        self.item = item
        self.flags = flags
        self.queued_ns = queued_ns
        self.size = 1
        self.key: Hashable | None = item.shape_key


class Sequence(Generic[Instance, Item]):
    """Requests with one correlation id, from START to END.

    Attributes:
        id: The correlation id.
        queue: Requests that wait, in order.
        slot: Where it is; None while it is in the backlog, and when it is over.
        in_flight: The request that is being executed; there is never more than one.
        has_begun: A request of it was dispatched: it cannot move to another instance any more.
        is_closed: Nothing will be added: its END has come, or it was given up.
        expires_ns: When it will have been in the backlog too long; 0 for never.
        state: What is kept of it between its requests, once it has begun.
    """

    __slots__ = ("expires_ns", "has_begun", "id", "in_flight", "is_closed", "queue", "slot", "state")

    def __init__(self, correlation_id: int | str) -> None:
        self.id = correlation_id
        self.queue: deque[SequenceRequest[Item]] = deque()
        self.slot: Slot[Instance, Item] | None = None
        self.in_flight: SequenceRequest[Item] | None = None
        self.has_begun = False
        self.is_closed = False
        self.expires_ns = 0
        self.state: SequenceState | None = None

    def __repr__(self) -> str:
        return f"<Sequence {self.id!r} waiting={len(self.queue)} closed={self.is_closed}>"


class Slot(Generic[Instance, Item]):
    """One place of an instance."""

    __slots__ = ("host", "index", "sequence")

    def __init__(self, host: InstanceSlots[Instance, Item], index: int) -> None:
        self.host = host
        self.index = index
        self.sequence: Sequence[Instance, Item] | None = None


class InstanceSlots(Generic[Instance, Item]):
    """An instance with its slots.

    Attributes:
        instance: The instance.
        slots: Its slots.
        ready: Sequences whose next request may be executed, longest ready first.
        batch: The sequences of the batch it executes; None while it is idle.
        wake_ns: When to look again at what is ready.
    """

    __slots__ = ("batch", "instance", "ready", "slots", "wake_ns")

    def __init__(self, instance: Instance, slots: int) -> None:
        self.instance = instance
        self.slots = [Slot(self, index) for index in range(slots)]
        self.ready: OrderedDict[Sequence[Instance, Item], None] = OrderedDict()
        self.batch: list[Sequence[Instance, Item]] | None = None
        self.wake_ns: int | None = None


class SequenceBatch(NamedTuple, Generic[Instance, Item]):
    """What a strategy decides: the rows to execute now (None: a slot without a request), or when to look again."""

    rows: tuple[Sequence[Instance, Item] | None, ...]
    wake_ns: int | None = None


class Strategy(Protocol):
    """How the sequences of an instance are batched.

    Attributes:
        delays_anew: A request's delay begins when the one before it in the sequence is done, not when it came.
    """

    delays_anew: bool

    def form(self, host: InstanceSlots[Instance, Item], now_ns: int) -> SequenceBatch[Instance, Item]:
        """Decide about an idle instance of which some sequence is ready."""


class Direct:
    """A sequence keeps its row: that of slot 3 is always the fourth.

    Slots without a request are filled, so that the rows stay, if the model is told which rows are requests.
    """

    __slots__ = ("_delay_ns", "_fills", "_slots", "_utilization", "delays_anew")

    def __init__(self, slots: int, *, fills: bool, delay_us: int = 0, minimum_slot_utilization: float = 0.0) -> None:
        self.delays_anew = False
        self._slots = slots
        self._fills = fills
        # Without a utilization to reach there is nothing to wait for.
        self._delay_ns = delay_us * 1000 if minimum_slot_utilization > 0 else 0
        self._utilization = minimum_slot_utilization

    def form(self, host: InstanceSlots[Instance, Item], now_ns: int) -> SequenceBatch[Instance, Item]:
        """Take the next request of each slot, once enough slots have one or one has waited for long enough."""
        slots = [slot.sequence if slot.sequence in host.ready else None for slot in host.slots]
        ready = [sequence for sequence in slots if sequence is not None]
        wake_ns = min(sequence.queue[0].queued_ns for sequence in ready) + self._delay_ns
        if now_ns < wake_ns and len(ready) / self._slots < self._utilization:
            return SequenceBatch((), wake_ns)
        key = next((request.key for sequence in ready if (request := sequence.queue[0]).key is not None), None)
        rows = [
            sequence if sequence is not None and sequence.queue[0].key in {None, key} else None for sequence in slots
        ]
        last = max(index for index, sequence in enumerate(rows) if sequence is not None)
        return SequenceBatch(tuple(row for row in rows[: last + 1] if row is not None or self._fills))


class Oldest:
    """Any sequences of the instance, those first whose request has waited longest, batched dynamically."""

    __slots__ = ("_rule", "delays_anew")

    def __init__(self, rule: BatchRule) -> None:
        self.delays_anew = True
        self._rule = rule

    def form(self, host: InstanceSlots[Instance, Item], now_ns: int) -> SequenceBatch[Instance, Item]:
        """Batch the longest ready ones by the rules of the dynamic batcher."""
        formed = self._rule.form((sequence.queue[0] for sequence in host.ready), now_ns)
        if not formed.number:
            return SequenceBatch((), formed.wake_ns)
        return SequenceBatch(tuple(sequence for sequence, _ in zip(host.ready, range(formed.number), strict=False)))
