"""Sequences, the slots they occupy, and the two strategies that form a batch of an instance's slots.

Documented in Triton's batcher.md ("Scheduling Strategies"):

- `Direct`: a sequence keeps its slot, and its slot is its row in the batch, until it ends. The model can therefore keep
  per-row state. Slots without a request are padded, with READY false.
- `Oldest`: any sequences of the instance share a batch, by the rule of the dynamic batcher, those first whose request
  has waited longest. Their rows change from batch to batch, so the model tells them apart by their correlation ids.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, Protocol

from naiad.engine.scheduling.dynamic.batch_rule import BatchRule
from naiad.engine.scheduling.interface import Instance, Item, NamedTuple
from naiad.engine.scheduling.sequences.states import SequenceState


class SequenceRequest(Generic[Item]):
    """One queued request of a sequence."""

    __slots__ = ("flags", "item", "key", "queued_ns", "size")

    def __init__(self, item: Item, flags: int, queued_ns: int) -> None:
        self.item = item
        self.flags = flags
        # Time of its arrival, or when it became the next of its sequence (`Strategy.restarts_delay`).
        self.queued_ns = queued_ns
        self.size = 1
        self.key: Hashable | None = item.shape_key


class Sequence(Generic[Instance, Item]):
    """Requests with one correlation id, from START to END."""

    __slots__ = ("expires_ns", "has_begun", "id", "in_flight", "is_closed", "queue", "slot", "state")

    def __init__(self, correlation_id: int | str) -> None:
        self.id = correlation_id
        self.queue: deque[SequenceRequest[Item]] = deque()
        self.slot: Slot[Instance, Item] | None = None
        self.in_flight: SequenceRequest[Item] | None = None  # the request that is executed now; there is at most one
        # Whether a request was dispatched: the sequence cannot move to another instance any more.
        self.has_begun = False
        # Whether no further request is accepted: END was received, or the sequence was terminated.
        self.is_closed = False
        self.expires_ns: int | None = None  # when its timeout in the backlog expires; None for never
        self.state: SequenceState | None = None  # its implicit state between requests, once it has begun

    def __repr__(self) -> str:
        return f"<Sequence {self.id!r} waiting={len(self.queue)} closed={self.is_closed}>"


class Slot(Generic[Instance, Item]):
    """Capacity of an instance for one sequence."""

    __slots__ = ("index", "owner", "sequence")

    def __init__(self, owner: InstanceSlots[Instance, Item], index: int) -> None:
        self.owner = owner
        self.index = index
        self.sequence: Sequence[Instance, Item] | None = None


class InstanceSlots(Generic[Instance, Item]):
    """An instance and its slots."""

    __slots__ = ("batch", "instance", "ready", "slots", "wake_ns")

    def __init__(self, instance: Instance, slots: int) -> None:
        self.instance = instance
        self.slots = [Slot(self, index) for index in range(slots)]
        # Sequences whose next request can be executed, longest ready first.
        self.ready: OrderedDict[Sequence[Instance, Item], None] = OrderedDict()
        # The sequences of the batch that the instance executes; None while it is idle.
        self.batch: list[Sequence[Instance, Item]] | None = None
        self.wake_ns: int | None = None  # when the delay of its next batch expires; None without one


class SequenceBatch(NamedTuple, Generic[Instance, Item]):
    """Decision of a strategy: the rows to execute now (None: a padding row), or when the delay expires."""

    rows: tuple[Sequence[Instance, Item] | None, ...]
    wake_ns: int | None = None


class Strategy(Protocol):
    """How the sequences of an instance are batched."""

    # Whether a request's delay begins when its predecessor in the sequence is finished, rather than when the request
    # arrived.
    restarts_delay: bool

    def next_batch(self, owner: InstanceSlots[Instance, Item], now_ns: int) -> SequenceBatch[Instance, Item]:
        """Decide about an idle instance with at least one ready sequence."""


class Direct:
    """Each slot is a fixed row: the sequence in slot 3 is always the fourth row.

    Slots without a request are padded, to keep the rows in place. This requires that the model has the READY control,
    which tells requests from padding; without it, the rows move together.
    """

    __slots__ = ("_delay_ns", "_pads", "_slots", "_utilization", "restarts_delay")

    def __init__(self, slots: int, *, pads: bool, delay_us: int = 0, minimum_slot_utilization: float = 0.0) -> None:
        self.restarts_delay = False
        self._slots = slots
        self._pads = pads
        # Without a minimum utilization, a batch does not wait for more requests.
        self._delay_ns = delay_us * 1000 if minimum_slot_utilization > 0 else 0
        self._utilization = minimum_slot_utilization

    def next_batch(self, owner: InstanceSlots[Instance, Item], now_ns: int) -> SequenceBatch[Instance, Item]:
        slots = [slot.sequence if slot.sequence in owner.ready else None for slot in owner.slots]
        ready = [sequence for sequence in slots if sequence is not None]
        wake_ns = min(sequence.queue[0].queued_ns for sequence in ready) + self._delay_ns
        if now_ns < wake_ns and len(ready) / self._slots < self._utilization:
            return SequenceBatch((), wake_ns)
        key = next((request.key for sequence in ready if (request := sequence.queue[0]).key is not None), None)
        rows = [
            sequence if sequence is not None and sequence.queue[0].key in {None, key} else None for sequence in slots
        ]
        last = max(index for index, sequence in enumerate(rows) if sequence is not None)
        return SequenceBatch(tuple(row for row in rows[: last + 1] if row is not None or self._pads))


class Oldest:
    """Any ready sequences of the instance, longest ready first, by the rule of the dynamic batcher."""

    __slots__ = ("_rule", "restarts_delay")

    def __init__(self, rule: BatchRule) -> None:
        self.restarts_delay = True
        self._rule = rule

    def next_batch(self, owner: InstanceSlots[Instance, Item], now_ns: int) -> SequenceBatch[Instance, Item]:
        decision = self._rule.decide((sequence.queue[0] for sequence in owner.ready), now_ns)
        if not decision.request_count:
            return SequenceBatch((), decision.wake_ns)
        return SequenceBatch(
            tuple(sequence for sequence, _ in zip(owner.ready, range(decision.request_count), strict=False))
        )
