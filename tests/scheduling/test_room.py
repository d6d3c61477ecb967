"""What becomes of batches whose inputs do not fit into the memory of an instance."""

from __future__ import annotations

from itertools import count

import pytest
from naiad.engine.dispatch import Dispatcher
from naiad.engine.pending import Pending
from naiad.errors import OutOfMemoryError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.scheduling.batching import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler


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
            self.dispatcher.carry_out(self.scheduler.finished(self.guest, 0))
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
