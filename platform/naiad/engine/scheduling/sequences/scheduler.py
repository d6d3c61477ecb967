"""The sequence batcher (`sequence_batching`): all requests of a sequence go, in order, to the same instance.

Documented in Triton's batcher.md ("Sequence Batcher"); rules: CORE src/sequence_batch_scheduler/. The life of a
sequence:

1. A request with START opens it. It gets a free slot of an instance, else it waits in the `Backlog`.
2. Its requests are executed one after the other. It is *ready* while it has a slot and a queued request, and none in
   flight. The strategy (`slots.Direct`, `slots.Oldest`) chooses which ready sequences of an instance form a batch.
3. It closes when END arrives, when a request of it is cancelled, when it has been idle too long, or when its timeout in
   the backlog expires. A closed sequence accepts no requests; a later START opens a new one.
4. It frees its slot once it is closed and its last request has been executed.
5. If its instance exits, a sequence that had begun is lost: its queued and later requests fail, because its state was
   in that instance. One that had not begun returns to the front of the backlog.

An iterative sequence (`iterative_sequence`) has one request. The model reschedules it until it is finished.

An instance executes one batch at a time, even if its depth allows more: the next requests of its sequences depend on
the results.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Values
from itertools import count
from typing import Generic

from naiad.core.errors import Code, NaiadError, NotReadyError
from naiad.engine.scheduling.interface import Action, Instance, Item, Rejection, Row, RowDispatch, SchedulerWarning
from naiad.engine.scheduling.sequences.backlog import Backlog
from naiad.engine.scheduling.sequences.controls import Controls
from naiad.engine.scheduling.sequences.rules import SequenceRules
from naiad.engine.scheduling.sequences.slots import InstanceSlots, Sequence, SequenceRequest, Slot, Strategy
from naiad.engine.scheduling.sequences.states import SequenceState, StateTensor
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START


class SequenceScheduler(Generic[Instance, Item]):
    """Sequences, and the slots of the instances; see `Scheduler` and `Sequences`."""

    singly = None

    def __init__(
        self,
        rules: SequenceRules,
        strategy: Strategy,
        controls: Controls,
        slots: int,
        idle_us: int = 1_000_000,
        states: Values[StateTensor] = (),
    ) -> None:
        self._rules = rules
        self._strategy = strategy
        self._controls = controls
        self._slots = slots
        self._states = states
        self._idle_ns = idle_us * 1000
        self._instances: dict[Instance, InstanceSlots[Instance, Item]] = {}
        self._free: list[tuple[int, int, Slot[Instance, Item]]] = []
        self._numbers = count()
        self._open: dict[int | str, Sequence[Instance, Item]] = {}
        self._backlog: Backlog[Instance, Item] = Backlog()
        self._idle: OrderedDict[Sequence[Instance, Item], int] = OrderedDict()
        self._waiting: dict[Item, Sequence[Instance, Item]] = {}
        self._pending_actions: list[Action[Instance, Item]] = []
        self._undecided: dict[InstanceSlots[Instance, Item], None] = {}
        self._rescheduled: set[Item] = set()

    def __repr__(self) -> str:
        return (
            f"<SequenceScheduler sequences={len(self._open)} backlog={len(self._backlog)} "
            f"waiting={len(self._waiting)} instances={len(self._instances)}>"
        )

    @property
    def sequences(self) -> SequenceScheduler[Instance, Item]:
        return self

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def has_sequence(self, correlation_id: int | str) -> bool:
        return correlation_id in self._open

    # -- instances ----------------------------------------------------------------------------------------------

    def add_instance(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        owner: InstanceSlots[Instance, Item] = InstanceSlots(instance, self._slots)
        self._instances[instance] = owner
        for slot in owner.slots:
            self._push_free(slot)
        return self._decide(now_ns)

    def remove_instance(self, instance: Instance) -> None:
        """An instance exited: sequences that had begun on it are lost, others return to the front of the backlog."""
        owner = self._instances.pop(instance, None)
        if owner is None:
            return
        self._free = [free for free in self._free if free[2].owner is not owner]
        heapq.heapify(self._free)
        sequences = [slot.sequence for slot in owner.slots if slot.sequence is not None]
        for sequence in reversed(sequences):
            request = sequence.in_flight
            if request is not None and request.item in self._rescheduled:
                # Neither queued any more nor executed any more, so nothing else would end it.
                self._rescheduled.discard(request.item)
                self._pending_actions.append(Rejection(request.item, self._rules.lost_error(sequence.id)))
            sequence.slot = sequence.in_flight = None
            self._idle.pop(sequence, None)
            if sequence.has_begun:
                self._fail_lost(sequence)
            else:
                self._backlog.push_first(sequence)

    def is_in_use(self, instance: Instance) -> bool:
        owner = self._instances.get(instance)
        return owner is not None and any(slot.sequence is not None for slot in owner.slots)

    def set_depth(self, instance: Instance, depth: int) -> None:
        """Do nothing: an instance executes one batch at a time."""

    def close(self) -> None:
        self._rules.is_closed = True

    def _fail_lost(self, sequence: Sequence[Instance, Item]) -> None:
        if not sequence.is_closed:
            self._rules.remember_lost(sequence.id)
        self._close(sequence)
        for item in self._clear_queue(sequence):
            self._pending_actions.append(Rejection(item, self._rules.lost_error(sequence.id)))

    # -- requests -----------------------------------------------------------------------------------------------

    def enqueue(self, item: Item, now_ns: int, *, needs_idle: bool = False) -> list[Action[Instance, Item]]:  # noqa: ARG002 - `Scheduler` has it
        """A request arrived. *needs_idle* has no effect: instances only get a batch while they are idle."""
        self._expire(now_ns)  # first, because its sequence may have been idle too long
        try:
            correlation_id, flags = self._rules.admit(item, self._open)
            self._controls.check(correlation_id, self._rules.model)
        except NaiadError as error:
            return [*self._decide(now_ns), Rejection(item, error)]
        sequence = self._open.get(correlation_id)
        if sequence is None:
            sequence = self._open[correlation_id] = Sequence(correlation_id)
        elif flags & SEQUENCE_START:
            self._pending_actions.append(SchedulerWarning(self._rules.conflict_text(correlation_id)))
        self._append(sequence, SequenceRequest(item, flags, now_ns))
        if flags & SEQUENCE_END:
            self._close(sequence)
        if sequence.slot is None:
            self._assign_slot(sequence, item.timeout_us, now_ns)
        return self._decide(now_ns)

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> list[Action[Instance, Item]]:
        """Queue dispatched requests whose execution did not begin; those of an instance that exited fail as lost."""
        lost = set(items)
        for owner in self._instances.values():
            returned = [
                each for each in owner.batch or () if each.in_flight is not None and each.in_flight.item in lost
            ]
            if returned:
                lost.difference_update(each.in_flight.item for each in returned if each.in_flight is not None)
                self._return_to_queue(owner, returned)
                owner.batch = [sequence for sequence in owner.batch or () if sequence not in returned]
        error = NotReadyError(self._rules.lost_text)
        return [*self._decide(now_ns), *(Rejection(item, error) for item in items if item in lost)]

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:  # noqa: ARG002 - there is only one batch
        owner = self._instances.get(instance)
        if owner is None or owner.batch is None:
            return
        self._return_to_queue(owner, owner.batch)
        owner.batch = None

    def _return_to_queue(
        self, owner: InstanceSlots[Instance, Item], sequences: Values[Sequence[Instance, Item]]
    ) -> None:
        for sequence in reversed(sequences):
            request = sequence.in_flight
            assert request is not None
            sequence.in_flight = None
            sequence.queue.appendleft(request)
            self._waiting[request.item] = sequence
            owner.ready[sequence] = None
            owner.ready.move_to_end(sequence, last=False)

    def reschedule(self, item: Item) -> None:
        """Execute this request of an iterative sequence again; to be called before `on_finished`."""
        self._rescheduled.add(item)

    def withdraw(self, item: Item) -> bool:
        """Remove a queued item and cancel its whole sequence; False if it is not queued (any more)."""
        sequence = self._waiting.get(item)
        if sequence is None:
            return False
        self._close(sequence)
        for other in self._clear_queue(sequence):
            if other is not item:
                self._pending_actions.append(Rejection(other, NaiadError("", code=Code.CANCELLED)))
        self._backlog.discard(sequence)
        if sequence.slot is not None:
            self._undecided[sequence.slot.owner] = None
        self._free_or_mark_idle(sequence, 0)
        return True

    def on_finished(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        owner = self._instances.get(instance)
        if owner is not None:
            batch, owner.batch = owner.batch or [], None
            self._undecided[owner] = None
            for sequence in batch:
                self._on_executed(sequence, now_ns)
        return self._decide(now_ns)

    def deadline_of(self, item: Item, queued_ns: int) -> None:  # noqa: ARG002 - `Scheduler` has it
        """None: timeouts of the backlog end when a sequence has its slot."""
        return

    def wake(self, now_ns: int) -> list[Action[Instance, Item]]:
        return self._decide(now_ns)

    def next_wakeup(self) -> int | None:
        if self._pending_actions or self._undecided or (self._backlog and self._free):
            return 0
        times = [owner.wake_ns for owner in self._instances.values() if owner.wake_ns is not None]
        if self._idle:
            times.append(next(iter(self._idle.values())) + self._idle_ns)
        expiry = self._backlog.next_expiry()
        if expiry is not None:
            times.append(expiry)
        return min(times, default=None)

    def drain(self) -> Iterator[Item]:
        """Remove all queued items and yield them in the order of their arrival; all sequences are closed."""
        waiting = list(self._waiting)
        for sequence in dict.fromkeys([*self._waiting.values(), *self._open.values()]):
            self._close(sequence)
            self._clear_queue(sequence)
            self._backlog.discard(sequence)
            self._free_or_mark_idle(sequence, 0)
        yield from waiting

    # -- sequences ----------------------------------------------------------------------------------------------

    def _append(self, sequence: Sequence[Instance, Item], request: SequenceRequest[Item]) -> None:
        self._idle.pop(sequence, None)
        sequence.queue.append(request)
        self._waiting[request.item] = sequence
        self._make_ready(sequence)

    def _make_ready(self, sequence: Sequence[Instance, Item]) -> None:
        if sequence.slot is not None and sequence.in_flight is None and sequence.queue:
            owner = sequence.slot.owner
            owner.ready[sequence] = None
            self._undecided[owner] = None

    def _assign_slot(self, sequence: Sequence[Instance, Item], timeout_us: int, now_ns: int) -> None:
        slot = None if self._backlog else self._pop_free()
        if slot is None:
            self._backlog.push(sequence, now_ns + timeout_us * 1000 if timeout_us else None)
        else:
            self._occupy(slot, sequence)

    def _occupy(self, slot: Slot[Instance, Item], sequence: Sequence[Instance, Item]) -> None:
        slot.sequence, sequence.slot = sequence, slot
        self._make_ready(sequence)

    def _on_executed(self, sequence: Sequence[Instance, Item], now_ns: int) -> None:
        request, sequence.in_flight = sequence.in_flight, None
        assert request is not None
        if self._rules.is_iterative:
            if request.item in self._rescheduled:  # without END: the model decides when it is finished
                self._rescheduled.discard(request.item)
                self._append(sequence, SequenceRequest(request.item, 0, now_ns))
            else:
                self._close(sequence)
        if sequence.queue and self._strategy.restarts_delay:
            sequence.queue[0].queued_ns = now_ns
        self._make_ready(sequence)
        self._free_or_mark_idle(sequence, now_ns)

    def _free_or_mark_idle(self, sequence: Sequence[Instance, Item], now_ns: int) -> None:
        """If no request of a sequence is left: free its slot if it is closed, else start its idle time."""
        slot = sequence.slot
        if slot is None or sequence.queue or sequence.in_flight is not None:
            return
        slot.owner.ready.pop(sequence, None)
        if sequence.is_closed:
            self._idle.pop(sequence, None)
            sequence.slot = slot.sequence = None
            self._push_free(slot)
        else:
            self._idle[sequence] = now_ns

    def _close(self, sequence: Sequence[Instance, Item]) -> None:
        sequence.is_closed = True
        if self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]

    def _clear_queue(self, sequence: Sequence[Instance, Item]) -> list[Item]:
        items = [request.item for request in sequence.queue]
        sequence.queue.clear()
        for item in items:
            del self._waiting[item]
        return items

    def _push_free(self, slot: Slot[Instance, Item]) -> None:
        # Low slots of all instances first: this spreads sequences over instances, and keeps direct batches short.
        heapq.heappush(self._free, (slot.index, next(self._numbers), slot))

    def _pop_free(self) -> Slot[Instance, Item] | None:
        return heapq.heappop(self._free)[2] if self._free else None

    # -- decisions ----------------------------------------------------------------------------------------------

    def _expire(self, now_ns: int) -> None:
        while self._idle and next(iter(self._idle.values())) + self._idle_ns <= now_ns:
            sequence = next(iter(self._idle))
            self._close(sequence)
            self._free_or_mark_idle(sequence, now_ns)
        for sequence in self._backlog.expire(now_ns):
            self._close(sequence)
            for item in self._clear_queue(sequence):
                text = "timeout of the corresponding sequence has been expired"
                self._pending_actions.append(Rejection(item, NotReadyError(text)))

    def _decide(self, now_ns: int) -> list[Action[Instance, Item]]:
        self._expire(now_ns)
        while self._backlog and (slot := self._pop_free()) is not None:
            self._occupy(slot, self._backlog.pop())
        actions, self._pending_actions = self._pending_actions, []
        undecided, self._undecided = self._undecided, {}
        for owner in self._instances.values():
            if owner in undecided or (owner.wake_ns is not None and owner.wake_ns <= now_ns):
                actions += self._dispatch(owner, now_ns)
        return actions

    def _dispatch(self, owner: InstanceSlots[Instance, Item], now_ns: int) -> list[Action[Instance, Item]]:
        owner.wake_ns = None
        if owner.batch is not None or not owner.ready:
            return []
        batch = self._strategy.next_batch(owner, now_ns)
        owner.wake_ns = batch.wake_ns
        if not batch.rows:
            return []
        owner.batch = [sequence for sequence in batch.rows if sequence is not None]
        return [RowDispatch(owner.instance, tuple(self._row(sequence) for sequence in batch.rows))]

    def _row(self, sequence: Sequence[Instance, Item] | None) -> Row[Item]:
        if sequence is None:
            return Row(None, 0, 0, self._controls.padding_tensors())
        assert sequence.slot is not None
        del sequence.slot.owner.ready[sequence]
        request = sequence.in_flight = sequence.queue.popleft()
        sequence.has_begun = True
        del self._waiting[request.item]
        if self._states and (sequence.state is None or request.flags & SEQUENCE_START):
            sequence.state = SequenceState(self._states)
        controls = self._controls.tensors_for(request.flags, sequence.id)
        return Row(request.item, sequence.id, request.flags, controls, sequence.state)
