"""What becomes of batches whose inputs do not fit into the memory of an instance."""

from __future__ import annotations

from itertools import count, repeat

import pytest
from naiad.engine.serving.dispatch import Dispatcher
from naiad.engine.serving.pending import Pending
from naiad.errors import OutOfMemoryError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.scheduling.dynamic.batch_forming import BatchRule
from naiad.scheduling.dynamic.batcher import DynamicScheduler
from scheduling.sequences.sequences import END, READY, START, scheduler


class Guest:
    """Plays a worker whose input segment holds so many bytes; the test finishes its batches."""

    def __init__(self, room):
        self.room = room
        self.batches = {}
        self.executed = []

    def execute(self, batch, size):
        needed = sum(len(request.inputs[0].data) for _, request in batch)
        in_use = sum(size for _, size in self.batches.values())
        if needed + in_use > self.room:
            raise OutOfMemoryError(f"inputs of {needed} bytes do not fit")
        self.executed.append([key for key, _ in batch])
        self.batches[len(self.executed)] = (batch, needed)


class Desk:
    """A dispatcher with a dynamic batcher of up to four requests, and what it answers with errors."""

    def __init__(self, room):
        self.guest = Guest(room)
        self.failed = []
        self.scheduler = DynamicScheduler(BatchRule(4, (), 0))
        self.dispatcher = Dispatcher(self.scheduler, count(1000), self._fail, None)
        self.keys = count(1)

    def _fail(self, items, error):
        self.failed += [(pending.key, error.message) for pending in items]

    def ask(self, *sizes):
        for size in sizes:
            tensor = InputTensor("IN", Datatype.UINT8, (1, size), bytes(size))
            pending = Pending(next(self.keys), InferRequest("m", 1, [tensor]), None, 1)
            self.dispatcher.carry_out(self.scheduler.enqueue(pending, pending.queued))

    def serve(self):
        self.dispatcher.add(self.guest)
        while self.guest.batches:
            del self.guest.batches[min(self.guest.batches)]
            self.dispatcher.carry_out(self.scheduler.on_finished(self.guest, 0))
        return self.guest.executed


@pytest.mark.parametrize(
    ("sizes", "executed"),
    [
        ([10, 10, 10, 10], [[1, 2, 3, 4]]),
        ([50, 50, 50, 50], [[1, 2], [3, 4]]),
        ([90, 90, 90, 90], [[1], [2], [3], [4]]),
        ([90, 90, 90, 90, 10], [[1], [2], [3], [4, 5]]),
    ],
)
def test_a_batch_that_does_not_fit_is_executed_in_parts_and_in_order(sizes, executed):
    desk = Desk(100)
    desk.ask(*sizes)
    assert desk.serve() == executed
    assert desk.failed == []


@pytest.mark.parametrize("place", range(4))
def test_a_request_that_would_never_fit_fails_alone(place):
    desk = Desk(100)
    sizes = [60, 60, 60, 60]
    sizes[place] = 101
    desk.ask(*sizes)
    executed = [key for batch in desk.serve() for key in batch]
    assert executed == [key for key in (1, 2, 3, 4) if key != place + 1]
    assert desk.failed == [(place + 1, "inputs of 101 bytes do not fit")]


class SequenceDesk(Desk):
    """A dispatcher of sequences, each in a slot of its own; keys are those of the requests, rows without one are 0."""

    def __init__(self, room, text):
        super().__init__(room)
        self.scheduler = scheduler(text=text)
        self.dispatcher = Dispatcher(self.scheduler, repeat(0), self._fail, None)

    def ask(self, *sizes, flags=START | END):
        for sequence, size in enumerate(sizes, 1):
            tensor = InputTensor("IN", Datatype.UINT8, (1, size), bytes(size))
            request = InferRequest("m", 1, [tensor], correlation_id=sequence, flags=flags)
            pending = Pending(next(self.keys), request, None, 1)
            self.dispatcher.carry_out(self.scheduler.enqueue(pending, pending.queued))


@pytest.mark.parametrize("text", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
@pytest.mark.parametrize(
    ("sizes", "executed"),
    [
        ([10, 10, 10, 10], [[1, 2, 3, 4]]),
        ([50, 50, 50, 50], [[1, 2], [3, 4]]),
        ([90, 90, 90, 90], [[1], [2], [3], [4]]),
    ],
)
def test_a_batch_of_sequences_that_does_not_fit_is_executed_in_parts(text, sizes, executed):
    desk = SequenceDesk(100, text)
    desk.ask(*sizes)
    assert desk.serve() == executed
    assert desk.failed == []
    assert (desk.scheduler.open_count, desk.scheduler.waiting_count) == (0, 0)


@pytest.mark.parametrize("text", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
@pytest.mark.parametrize("place", range(4))
def test_a_request_of_a_sequence_that_would_never_fit_fails_alone(text, place):
    desk = SequenceDesk(100, text)
    sizes = [60, 60, 60, 60]
    sizes[place] = 101
    desk.ask(*sizes)
    executed = [key for batch in desk.serve() for key in batch]
    assert executed == [key for key in (1, 2, 3, 4) if key != place + 1]
    assert desk.failed == [(place + 1, "inputs of 101 bytes do not fit")]


def test_the_requests_of_a_sequence_stay_in_order_where_its_batch_is_cut():
    desk = SequenceDesk(100, "oldest { max_candidate_sequences: 4 }")
    desk.ask(50, 50, 50, flags=START)
    desk.ask(50, 50, 50, flags=END)
    executed = [key for batch in desk.serve() for key in batch]
    assert sorted(executed) == [1, 2, 3, 4, 5, 6]
    assert all(executed.index(sequence) < executed.index(sequence + 3) for sequence in (1, 2, 3))
    assert desk.failed == []


def test_rows_keep_their_places_where_a_batch_of_slots_is_cut():
    """A row without a request takes as much room as others, so what has more rows before it than there is room fails."""
    desk = SequenceDesk(100, f"direct {{}} {READY}")
    desk.ask(40, 40, 40)
    assert desk.serve() == [[1], [0, 2]]
    assert desk.failed == [(3, "inputs of 120 bytes do not fit")]


def test_a_sequence_goes_on_whose_request_did_not_fit():
    desk = SequenceDesk(100, "direct {}")
    desk.ask(101, flags=START)
    desk.serve()
    assert desk.failed == [(1, "inputs of 101 bytes do not fit")]
    desk.ask(10, flags=END)
    assert desk.serve() == [[2]]


def test_a_cut_batch_whose_instance_goes_leaves_no_sequence_behind():
    desk = SequenceDesk(100, "direct {}")
    desk.ask(60, 60, flags=START)
    desk.dispatcher.add(desk.guest)
    assert desk.guest.executed == [[1]]
    assert desk.scheduler.waiting_count == 1
    desk.scheduler.remove_instance(desk.guest)
    assert desk.scheduler.open_count == 0
