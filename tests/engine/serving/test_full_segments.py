"""Batches whose inputs do not fit into an instance's input segment are executed in parts."""

from __future__ import annotations

from itertools import count, repeat

import pytest
from engine.scheduling.sequences.sequences import END, READY, START, scheduler
from fakes.guests import Answers

from naiad.core.errors import OutOfMemoryError
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.dynamic.batch_rule import BatchRule
from naiad.engine.scheduling.dynamic.scheduler import DynamicScheduler
from naiad.engine.serving.execution import BatchExecutor
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor


class Guest:
    """A worker whose input segment has room for so many bytes; the test finishes its batches."""

    def __init__(self, room):
        self.room = room
        self.batches = {}
        self.executed = []

    def execute(self, batch, size):
        needed = sum(len(request.inputs[0].data) for _, request, _ in batch)
        in_use = sum(size for _, size in self.batches.values())
        if needed + in_use > self.room:
            raise OutOfMemoryError(f"inputs of {needed} bytes do not fit")
        self.executed.append([key for key, _, _ in batch])
        self.batches[len(self.executed)] = (batch, needed)


class Batcher:
    """An executor with a dynamic batcher of up to four requests, and the requests that failed."""

    def __init__(self, room):
        self.guest = Guest(room)
        self.failed = []
        self.scheduler = DynamicScheduler(BatchRule(4, (), 0))
        self.executor = BatchExecutor(self.scheduler, count(1000), self._fail, None)
        self.keys = count(1)

    def _fail(self, items, error):
        self.failed += [(pending.key, error.message) for pending in items]

    def _opened(self, request):
        pending = OpenRequest(request, Answers())
        pending.key = next(self.keys)
        return pending

    def ask(self, *sizes):
        for size in sizes:
            tensor = InputTensor("IN", Datatype.UINT8, (1, size), bytes(size))
            pending = self._opened(InferRequest("m", 1, [tensor]))
            self.executor.carry_out(self.scheduler.enqueue(pending, pending.queued))

    def add(self):
        self.executor.carry_out(self.scheduler.add_instance(self.guest, 0))

    def serve(self):
        self.add()
        while self.guest.batches:
            del self.guest.batches[min(self.guest.batches)]
            self.executor.carry_out(self.scheduler.on_finished(self.guest, 0))
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
    batcher = Batcher(100)
    batcher.ask(*sizes)
    assert batcher.serve() == executed
    assert batcher.failed == []


@pytest.mark.parametrize("place", range(4))
def test_a_request_that_would_never_fit_fails_alone(place):
    batcher = Batcher(100)
    sizes = [60, 60, 60, 60]
    sizes[place] = 101
    batcher.ask(*sizes)
    executed = [key for batch in batcher.serve() for key in batch]
    assert executed == [key for key in (1, 2, 3, 4) if key != place + 1]
    assert batcher.failed == [(place + 1, "inputs of 101 bytes do not fit")]


class SequenceBatcher(Batcher):
    """An executor of sequences, each in its own slot. Keys are those of the requests; rows without a request have key 0."""

    def __init__(self, room, text):
        super().__init__(room)
        self.scheduler = scheduler(text=text)
        self.executor = BatchExecutor(self.scheduler, repeat(0), self._fail, None)

    def ask(self, *sizes, flags=START | END):
        for sequence, size in enumerate(sizes, 1):
            tensor = InputTensor("IN", Datatype.UINT8, (1, size), bytes(size))
            request = InferRequest("m", 1, [tensor], correlation_id=sequence, flags=flags)
            pending = self._opened(request)
            self.executor.carry_out(self.scheduler.enqueue(pending, pending.queued))


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
    batcher = SequenceBatcher(100, text)
    batcher.ask(*sizes)
    assert batcher.serve() == executed
    assert batcher.failed == []
    assert (batcher.scheduler.open_count, batcher.scheduler.waiting_count) == (0, 0)


@pytest.mark.parametrize("text", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
@pytest.mark.parametrize("place", range(4))
def test_a_request_of_a_sequence_that_would_never_fit_fails_alone(text, place):
    batcher = SequenceBatcher(100, text)
    sizes = [60, 60, 60, 60]
    sizes[place] = 101
    batcher.ask(*sizes)
    executed = [key for batch in batcher.serve() for key in batch]
    assert executed == [key for key in (1, 2, 3, 4) if key != place + 1]
    assert batcher.failed == [(place + 1, "inputs of 101 bytes do not fit")]


def test_the_requests_of_a_sequence_stay_in_order_where_its_batch_is_cut():
    batcher = SequenceBatcher(100, "oldest { max_candidate_sequences: 4 }")
    batcher.ask(50, 50, 50, flags=START)
    batcher.ask(50, 50, 50, flags=END)
    executed = [key for batch in batcher.serve() for key in batch]
    assert sorted(executed) == [1, 2, 3, 4, 5, 6]
    assert all(executed.index(sequence) < executed.index(sequence + 3) for sequence in (1, 2, 3))
    assert batcher.failed == []


def test_rows_keep_their_places_where_a_batch_of_slots_is_cut():
    """A row without a request takes as much room as others, so what has more rows before it than there is room fails."""
    batcher = SequenceBatcher(100, f"direct {{}} {READY}")
    batcher.ask(40, 40, 40)
    assert batcher.serve() == [[1], [0, 2]]
    assert batcher.failed == [(3, "inputs of 120 bytes do not fit")]


def test_a_sequence_continues_after_a_request_that_did_not_fit():
    batcher = SequenceBatcher(100, "direct {}")
    batcher.ask(101, flags=START)
    batcher.serve()
    assert batcher.failed == [(1, "inputs of 101 bytes do not fit")]
    batcher.ask(10, flags=END)
    assert batcher.serve() == [[2]]


def test_a_divided_batch_whose_instance_exits_leaves_no_sequence_behind():
    batcher = SequenceBatcher(100, "direct {}")
    batcher.ask(60, 60, flags=START)
    batcher.add()
    assert batcher.guest.executed == [[1]]
    assert batcher.scheduler.waiting_count == 1
    batcher.scheduler.remove_instance(batcher.guest)
    assert batcher.scheduler.open_count == 0
