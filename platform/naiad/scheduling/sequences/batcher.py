"""Sequence batching: the requests of a sequence go, in order and one at a time, to the instance that has its slot.

A sequence begins with START and is given a free slot of an instance; without one it waits in the backlog. It keeps
the slot until its END has been executed, it was idle too long, a request of it was cancelled, or its instance is
gone. How the sequences of an instance share batches is the strategy's business (`slots.Direct`, `slots.Oldest`).

An instance executes one batch at a time, whatever its depth: the next requests of its sequences depend on it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Values
from itertools import count
from typing import Generic

from naiad.errors import Code, NaiadError, NotReadyError
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START
from naiad.scheduling.interface import Action, Instance, Item, Rejection, Row, RowDispatch, SchedulerWarning
from naiad.scheduling.sequences.backlog import Backlog
from naiad.scheduling.sequences.controls import Controls
from naiad.scheduling.sequences.rules import SequenceRules
from naiad.scheduling.sequences.slots import InstanceSlots, Sequence, SequenceRequest, Slot, Strategy
from naiad.scheduling.sequences.states import SequenceState, StateTensor

__all__ = ["SequenceScheduler"]


class SequenceScheduler(Generic[Instance, Item]):
    """Sequences, and the slots of instances; see `Scheduler`."""

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
        self._hosts: dict[Instance, InstanceSlots[Instance, Item]] = {}
        self._free: list[tuple[int, int, Slot[Instance, Item]]] = []
        self._numbers = count()
        self._open: dict[int | str, Sequence[Instance, Item]] = {}
        self._backlog: Backlog[Instance, Item] = Backlog()
        self._idle: OrderedDict[Sequence[Instance, Item], int] = OrderedDict()
        self._waiting: dict[Item, Sequence[Instance, Item]] = {}
        self._due: list[Action[Instance, Item]] = []
        self._stale: dict[InstanceSlots[Instance, Item], None] = {}
        self._rescheduled: set[Item] = set()

    def __repr__(self) -> str:
        return (
            f"<SequenceScheduler sequences={len(self._open)} backlog={len(self._backlog)} "
            f"waiting={len(self._waiting)} instances={len(self._hosts)}>"
        )

    @property
    def waiting_count(self) -> int:
        """How many requests are not dispatched yet."""
        return len(self._waiting)

    @property
    def open_count(self) -> int:
        """How many sequences have begun and not ended."""
        return len(self._open)

    def has_sequence(self, correlation_id: int | str) -> bool:
        """Whether a sequence of that id has begun and not ended."""
        return correlation_id in self._open

    # -- instances ----------------------------------------------------------------------------------------------

    def add_instance(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        """An instance became ready."""
        host: InstanceSlots[Instance, Item] = InstanceSlots(instance, self._slots)
        self._hosts[instance] = host
        for slot in host.slots:
            self._push_free(slot)
        return self._decide(now_ns)

    def remove_instance(self, instance: Instance) -> None:
        """An instance is gone: sequences that had begun on it have failed, others wait for another."""
        host = self._hosts.pop(instance, None)
        if host is None:
            return
        self._stale.pop(host, None)
        self._free = [free for free in self._free if free[2].host is not host]
        heapq.heapify(self._free)
        sequences = [slot.sequence for slot in host.slots if slot.sequence is not None]
        for sequence in reversed(sequences):
            if sequence.in_flight is not None:
                self._rescheduled.discard(sequence.in_flight.item)
            sequence.slot = sequence.in_flight = None
            self._idle.pop(sequence, None)
            if sequence.has_begun:
                self._lose(sequence)
            else:
                self._backlog.push_first(sequence)

    def set_depth(self, instance: Instance, depth: int) -> None:
        """Without effect: see above."""

    def close(self) -> None:
        """Reject all sequences that would begin from now on."""
        self._rules.is_closed = True

    def _lose(self, sequence: Sequence[Instance, Item]) -> None:
        if not sequence.is_closed:
            self._rules.lost(sequence.id)
        self._close(sequence)
        for item in self._empty(sequence):
            self._due.append(Rejection(item, self._rules.lost_error(sequence.id)))

    # -- requests -----------------------------------------------------------------------------------------------

    def enqueue(self, item: Item, now_ns: int, *, alone: bool = False) -> list[Action[Instance, Item]]:  # noqa: ARG002 - the signature of all schedulers
        """A request arrived. They are all executed as if *alone*."""
        self._expire(now_ns)  # the sequence may have been idle too long by now
        try:
            correlation_id, flags = self._rules.admit(item, self._open)
            self._controls.check(correlation_id, self._rules.model)
        except NaiadError as error:
            return [*self._decide(now_ns), Rejection(item, error)]
        sequence = self._open.get(correlation_id)
        if sequence is None:
            sequence = self._open[correlation_id] = Sequence(correlation_id)
        elif flags & SEQUENCE_START:
            self._due.append(SchedulerWarning(self._rules.conflict(correlation_id)))
        self._append(sequence, SequenceRequest(item, flags, now_ns))
        if flags & SEQUENCE_END:
            self._close(sequence)
        if sequence.slot is None:
            self._place(sequence, item.timeout_us, now_ns)
        return self._decide(now_ns)

    def requeue(self, items: tuple[Item, ...], now_ns: int = 0) -> list[Action[Instance, Item]]:
        """Requests that were dispatched but never begun: their sequences ended with their instance, if that is gone."""
        lost = set(items)
        for host in self._hosts.values():
            cut = [each for each in host.batch or () if each.in_flight is not None and each.in_flight.item in lost]
            if cut:
                lost.difference_update(each.in_flight.item for each in cut if each.in_flight is not None)
                self._wait_again(host, cut)
                host.batch = [sequence for sequence in host.batch or () if sequence not in cut]
        error = NotReadyError(self._rules.lost_text)
        return [*self._decide(now_ns), *(Rejection(item, error) for item in items if item in lost)]

    def undo_dispatch(self, instance: Instance, items: tuple[Item, ...]) -> None:  # noqa: ARG002 - it has only the one batch
        """The batch could not be carried out now: its requests wait again, first."""
        host = self._hosts.get(instance)
        if host is None or host.batch is None:
            return
        self._wait_again(host, host.batch)
        host.batch = None

    def _wait_again(self, host: InstanceSlots[Instance, Item], sequences: Values[Sequence[Instance, Item]]) -> None:
        for sequence in reversed(sequences):
            request = sequence.in_flight
            assert request is not None
            sequence.in_flight = None
            sequence.queue.appendleft(request)
            self._waiting[request.item] = sequence
            host.ready[sequence] = None
            host.ready.move_to_end(sequence, last=False)

    def reschedule(self, item: Item) -> None:
        """The model wants to see this request of an iterative sequence again. To be said before `on_finished`."""
        self._rescheduled.add(item)

    def withdraw(self, item: Item) -> bool:
        """Take a waiting item out, and with it its whole sequence; False where it does not wait (any more)."""
        sequence = self._waiting.get(item)
        if sequence is None:
            return False
        self._close(sequence)
        for other in self._empty(sequence):
            if other is not item:
                self._due.append(Rejection(other, NaiadError("", code=Code.CANCELLED)))
        self._backlog.discard(sequence)
        if sequence.slot is not None:
            self._stale[sequence.slot.host] = None
            sequence.slot.host.ready.pop(sequence, None)
        self._rest(sequence, 0)
        return True

    def on_finished(self, instance: Instance, now_ns: int = 0) -> list[Action[Instance, Item]]:
        """An instance finished its batch."""
        host = self._hosts.get(instance)
        if host is not None:
            batch, host.batch = host.batch or [], None
            self._stale[host] = None
            for sequence in batch:
                self._executed(sequence, now_ns)
        return self._decide(now_ns)

    def wake(self, now_ns: int) -> list[Action[Instance, Item]]:
        """Time has passed."""
        return self._decide(now_ns)

    def next_wakeup(self) -> int | None:
        """When a sequence will have been idle or in the backlog too long, or a batch has waited long enough."""
        if self._due or self._stale or (self._backlog and self._free):
            return 0
        times = [host.wake_ns for host in self._hosts.values() if host.wake_ns is not None]
        if self._idle:
            times.append(next(iter(self._idle.values())) + self._idle_ns)
        expiry = self._backlog.next_expiry()
        if expiry is not None:
            times.append(expiry)
        return min(times, default=None)

    def drain(self) -> Iterator[Item]:
        """Take out everything that waits, in the order it came; all sequences are over."""
        waiting = list(self._waiting)
        for sequence in dict.fromkeys([*self._waiting.values(), *self._open.values()]):
            self._close(sequence)
            self._empty(sequence)
            self._backlog.discard(sequence)
            self._rest(sequence, 0)
        yield from waiting

    # -- sequences ----------------------------------------------------------------------------------------------

    def _append(self, sequence: Sequence[Instance, Item], request: SequenceRequest[Item]) -> None:
        self._idle.pop(sequence, None)
        sequence.queue.append(request)
        self._waiting[request.item] = sequence
        self._make_ready(sequence)

    def _make_ready(self, sequence: Sequence[Instance, Item]) -> None:
        if sequence.slot is not None and sequence.in_flight is None and sequence.queue:
            host = sequence.slot.host
            host.ready[sequence] = None
            self._stale[host] = None

    def _place(self, sequence: Sequence[Instance, Item], timeout_us: int, now_ns: int) -> None:
        slot = None if self._backlog else self._pop_free()
        if slot is None:
            self._backlog.push(sequence, now_ns + timeout_us * 1000 if timeout_us else 0)
        else:
            self._occupy(slot, sequence)

    def _occupy(self, slot: Slot[Instance, Item], sequence: Sequence[Instance, Item]) -> None:
        slot.sequence, sequence.slot = sequence, slot
        self._make_ready(sequence)

    def _executed(self, sequence: Sequence[Instance, Item], now_ns: int) -> None:
        request, sequence.in_flight = sequence.in_flight, None
        assert request is not None
        if self._rules.is_iterative:
            if request.item in self._rescheduled:  # its END, if it has one, is the model's to tell
                self._rescheduled.discard(request.item)
                self._append(sequence, SequenceRequest(request.item, 0, now_ns))
            else:
                self._close(sequence)
        if sequence.queue and self._strategy.delays_anew:
            sequence.queue[0].queued_ns = now_ns
        self._make_ready(sequence)
        self._rest(sequence, now_ns)

    def _rest(self, sequence: Sequence[Instance, Item], now_ns: int) -> None:
        """Nothing of a sequence waits: free its slot if it is over, else watch how long it stays idle."""
        slot = sequence.slot
        if slot is None or sequence.queue or sequence.in_flight is not None:
            return
        slot.host.ready.pop(sequence, None)
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

    def _empty(self, sequence: Sequence[Instance, Item]) -> list[Item]:
        items = [request.item for request in sequence.queue]
        sequence.queue.clear()
        for item in items:
            del self._waiting[item]
        return items

    def _push_free(self, slot: Slot[Instance, Item]) -> None:
        # Low slots of all instances first: that spreads sequences, and keeps batches of rows short.
        heapq.heappush(self._free, (slot.index, next(self._numbers), slot))

    def _pop_free(self) -> Slot[Instance, Item] | None:
        return heapq.heappop(self._free)[2] if self._free else None

    # -- decisions ----------------------------------------------------------------------------------------------

    def _expire(self, now_ns: int) -> None:
        while self._idle and next(iter(self._idle.values())) + self._idle_ns <= now_ns:
            sequence = next(iter(self._idle))
            self._close(sequence)
            self._rest(sequence, now_ns)
        for sequence in self._backlog.expire(now_ns):
            self._close(sequence)
            for item in self._empty(sequence):
                text = "timeout of the corresponding sequence has been expired"
                self._due.append(Rejection(item, NotReadyError(text)))

    def _decide(self, now_ns: int) -> list[Action[Instance, Item]]:
        self._expire(now_ns)
        while self._backlog and (slot := self._pop_free()) is not None:
            self._occupy(slot, self._backlog.pop())
        actions, self._due = self._due, []
        stale, self._stale = self._stale, {}
        for host in self._hosts.values():
            if host in stale or (host.wake_ns is not None and host.wake_ns <= now_ns):
                actions += self._form(host, now_ns)
        return actions

    def _form(self, host: InstanceSlots[Instance, Item], now_ns: int) -> list[Action[Instance, Item]]:
        host.wake_ns = None
        if host.batch is not None or not host.ready:
            return []
        batch = self._strategy.form(host, now_ns)
        host.wake_ns = batch.wake_ns
        if not batch.rows:
            return []
        host.batch = [sequence for sequence in batch.rows if sequence is not None]
        return [RowDispatch(host.instance, tuple(self._row(sequence) for sequence in batch.rows))]

    def _row(self, sequence: Sequence[Instance, Item] | None) -> Row[Item]:
        if sequence is None:
            return Row(None, 0, 0, self._controls.of_nothing())
        assert sequence.slot is not None
        del sequence.slot.host.ready[sequence]
        request = sequence.in_flight = sequence.queue.popleft()
        sequence.has_begun = True
        del self._waiting[request.item]
        if self._states and (sequence.state is None or request.flags & SEQUENCE_START):
            sequence.state = SequenceState(self._states)
        controls = self._controls.of(request.flags, sequence.id)
        return Row(request.item, sequence.id, request.flags, controls, sequence.state)
