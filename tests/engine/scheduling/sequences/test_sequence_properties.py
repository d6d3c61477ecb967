"""Sequence batching under any order of events: nothing lost, nothing doubled, every sequence in order."""

from __future__ import annotations

from engine.scheduling.clocked import Clocked
from engine.scheduling.requests import MS, Request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.engine.scheduling.factory import sequence_scheduler_for
from naiad.engine.scheduling.interface import Rejection, RowDispatch, SchedulerWarning
from naiad.engine.scheduling.sequences.states import SequenceState, StateTensor
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InputTensor, OutputTensor

START, END = 1, 2
IDLE = 20 * MS
STATES = (StateTensor("S_OUT", InputTensor("S_IN", Datatype.INT32, (1,), b"first")),)


def _config(*, size, oldest, ready, delay, iterative):
    message = pb.ModelConfig(name="m", max_batch_size=size)
    batching = message.sequence_batching
    batching.max_sequence_idle_microseconds = IDLE // 1000
    batching.iterative_sequence = iterative
    if oldest:
        batching.oldest.max_candidate_sequences = oldest
        batching.oldest.max_queue_delay_microseconds = delay
    else:
        batching.direct.max_queue_delay_microseconds = delay
        batching.direct.minimum_slot_utilization = 0.6
    if ready:
        control = batching.control_input.add(name="READY").control.add(kind="CONTROL_SEQUENCE_READY")
        control.bool_false_true.extend([False, True])
    return freeze(message)


class Sequences(Clocked):
    """The machine plays clients, guests and a clock; of the scheduler it knows what it answers alone."""

    @initialize(
        size=st.integers(0, 3),
        oldest=st.integers(0, 3),
        ready=st.booleans(),
        delay=st.sampled_from([0, 3000]),
        iterative=st.booleans(),
    )
    def start(self, size, oldest, ready, delay, iterative):
        self.size, self.fills = max(size, 1), ready and not oldest
        self.slots = oldest or self.size
        self.iterative = iterative
        self.scheduler = sequence_scheduler_for(
            _config(size=size, oldest=oldest, ready=ready, delay=delay, iterative=iterative), STATES
        )
        self.delay = delay * 1000
        self.now = 0
        self.arrived: list[Request] = []
        self.waiting: dict[Request, int] = {}
        self.held: dict[str, list[tuple[Request, object, SequenceState]]] = {}
        self.kept: dict[object, bytes] = {}
        self.instances = 0
        self.home: dict[object, str] = {}
        self.latest: dict[object, int] = {}
        self.gone: list[Request] = []
        self.again: set[Request] = set()

    def take(self, actions):
        for action in actions:
            if isinstance(action, RowDispatch):
                self.take_batch(action)
            elif isinstance(action, Rejection):
                assert action.error.message or action.error.code.value == "Cancelled"
                del self.waiting[action.item]
                self.again.discard(action.item)
                self.gone.append(action.item)
            else:
                assert isinstance(action, SchedulerWarning)
        assert self.scheduler.wake(self.now) == [], "a decision was missed"

    def take_batch(self, action):
        assert self.held[action.instance] == [], "one batch at a time"
        assert 0 < len(action.rows) <= self.size
        rows = [row for row in action.rows if row.item is not None]
        assert rows
        assert self.fills or len(rows) == len(action.rows)
        assert len({row.item.shape_key for row in rows} - {None}) <= 1
        # An id may be used again while the sequence that had it before is still worked off: not ids are compared.
        sequences = self.scheduler._instances[action.instance].batch
        for row, sequence in zip(rows, sequences, strict=True):
            self.check_row(action.instance, row, sequence)
        self.held[action.instance] = [
            (row.item, sequence, row.state) for row, sequence in zip(rows, sequences, strict=True)
        ]

    def check_row(self, instance, row, sequence):
        request = row.item
        assert self.home.setdefault(sequence, instance) == instance, "a sequence stays where it began"
        assert row.flags == (0 if request in self.again else request.flags if request.correlation_id else START)
        if request not in self.again:
            assert request.name >= self.latest.get(sequence, -1), "requests of a sequence are executed in order"
            self.latest[sequence] = request.name
        if row.flags & START or sequence not in self.kept:
            self.kept[sequence] = b"first"
        assert row.state.inputs[0].data == self.kept[sequence], "a sequence finds the state it left"
        del self.waiting[request]

    @rule(
        sequence=st.sampled_from([1, 2, 3, "1", "x", 0]),
        flags=st.sampled_from([0, 0, START, START, END, START | END]),
        timeout=st.sampled_from([0, 0, 4000]),
        key=st.sampled_from([None, "a", "b"]),
    )
    def enqueue(self, sequence, flags, timeout, key):
        flags = flags if sequence else 0
        request = Request(len(self.arrived), correlation_id=sequence, flags=flags, timeout_us=timeout, shape_key=key)
        self.arrived.append(request)
        self.waiting[request] = self.now
        self.take(self.scheduler.enqueue(request, self.now))

    @precondition(lambda self: len(self.held) < 3)
    @rule()
    def add(self):
        name = f"i{self.instances}"
        self.instances += 1
        self.held[name] = []
        self.take(self.scheduler.add_instance(name, self.now))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), again=st.booleans(), keeps=st.booleans())
    def finish(self, data, again, keeps):
        name = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        held, self.held[name] = self.held[name], []
        for index, (request, sequence, state) in enumerate(held):
            if keeps:
                self.kept[sequence] = b"%d" % request.name
                state.update([OutputTensor("S_OUT", Datatype.INT32, (1,), self.kept[sequence])])
            ends = request.flags & END and request not in self.again
            if self.iterative and again and not ends and not index:
                self.scheduler.reschedule(request)
                self.again.add(request)
                self.waiting[request] = self.now
            else:
                self.gone.append(request)
        self.take(self.scheduler.on_finished(name, self.now))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def undo_dispatch(self, data):
        name = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        held, self.held[name] = self.held[name], []
        items = tuple(request for request, *_ in held)
        self.waiting.update(dict.fromkeys(items, self.now))
        self.scheduler.undo_dispatch(name, items)
        self.take(self.scheduler.on_finished(name, self.now))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), begun=st.booleans())
    def die(self, data, begun):
        name = data.draw(st.sampled_from(sorted(self.held)))
        items = tuple(request for request, *_ in self.held.pop(name))
        self.scheduler.remove_instance(name)
        if begun:
            self.gone += items
            items = ()
        self.waiting.update(dict.fromkeys(items, self.now))
        self.take(self.scheduler.requeue(items, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        request = data.draw(st.sampled_from(list(self.waiting)))
        assert self.scheduler.withdraw(request)
        del self.waiting[request]
        self.gone.append(request)
        assert not self.scheduler.withdraw(request)
        if (self.scheduler.next_wakeup() or 0) <= self.now:
            self.take(self.scheduler.wake(self.now))

    @rule()
    def drain(self):
        drained = list(self.scheduler.drain())
        assert set(drained) == set(self.waiting)
        self.gone += drained
        self.waiting.clear()

    @invariant()
    def no_request_is_lost_or_doubled(self):
        if hasattr(self, "held"):
            held = [request for batch in self.held.values() for request, *_ in batch]
            everywhere = [request.name for request in (*held, *self.waiting, *self.gone)]
            assert sorted(everywhere) == list(range(len(self.arrived)))
            assert self.scheduler.waiting_count == len(self.waiting)

    @invariant()
    def slots_are_neither_lost_nor_doubled(self):
        if hasattr(self, "held"):
            scheduler = self.scheduler
            slots = [slot for host in scheduler._instances.values() for slot in host.slots]
            free = [slot for _, _, slot in scheduler._free]
            assert len(slots) == len(self.held) * self.slots
            assert sorted(map(id, free)) == sorted(id(slot) for slot in slots if slot.sequence is None)
            assert all(slot.sequence.slot is slot for slot in slots if slot.sequence is not None)
            assert not (scheduler._backlog and free)

    @invariant()
    def an_idle_instance_leaves_nothing_that_is_ready_but_for_its_delay(self):
        if hasattr(self, "held"):
            for host in self.scheduler._instances.values():
                if not self.held[host.instance] and host.ready:
                    assert host.wake_ns is not None
                    assert self.now < host.wake_ns <= self.now + self.delay

    @invariant()
    def time_is_watched(self):
        if hasattr(self, "held"):
            at = self.scheduler.next_wakeup()
            assert at is None or at > self.now


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=150, stateful_step_count=40)
