"""Dynamic batching on a real server: which requests share an execute call, in which order, and which are refused.

Requests are gathered behind a gate: while one execute call waits there, the others queue.
"""

from __future__ import annotations

import pytest
from support.server import ServerProcess

from .batches import BatchModel, Request, statistics, wait_for_pending


@pytest.fixture(scope="module")
def models(work):
    repository = work / "models"
    batching = "max_batch_size: 8 dynamic_batching { }"
    return {
        name: BatchModel(repository, name, config, dims)
        for name, config, dims in (
            ("plain", batching, "1"),
            ("ragged", batching, "-1"),
            ("reshaped", batching, "1 reshape { shape: [ ] }"),
            ("single", "dynamic_batching { }", "[1, 1]"),
        )
    }


@pytest.fixture(scope="module")
def server(models, work):
    config = models["ragged"].folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: -1", "dims: -1 allow_ragged_batch: true"))
    with ServerProcess(work / "models", work=work) as running:
        yield running


class Queue:
    """Requests that wait behind one that is being executed."""

    def __init__(self, server, model):
        self.server = server
        self.model = model
        self.waiting = []
        before = statistics(server, model)["execution_count"]
        model.close_gate()
        self.first = Request(server, model)
        model.wait_for_call(before + 1)

    def add(self, **request):
        self.waiting.append(Request(self.server, self.model, **request))
        wait_for_pending(self.server, self.model, len(self.waiting))
        return self.waiting[-1]

    def run(self):
        self.model.open_gate()
        return [request.batch[1:] for request in self.waiting]


def test_requests_that_wait_share_a_call_each_with_an_answer_of_its_own(server, models):
    before = statistics(server, models["plain"])
    queue = Queue(server, models["plain"])
    for rows in (1, 2, 3):
        queue.add(rows=rows)

    assert queue.run() == [[3, 6, 0], [3, 6, 1], [3, 6, 2]]
    assert queue.first.batch[1:] == [1, 1, 0]
    after = statistics(server, models["plain"])
    assert after["inference_count"] - before["inference_count"] == 7
    assert after["execution_count"] - before["execution_count"] == 2
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 4
    assert {batch["batch_size"] for batch in after["batch_stats"]} >= {1, 6}


def test_a_model_without_a_batch_dimension_has_batches_of_one(server, models):
    queue = Queue(server, models["single"])
    queue.add()
    queue.add()

    assert queue.run() == [[1, 1, 0], [1, 1, 0]]


def test_ragged_inputs_share_a_call_whatever_their_shapes(server, models):
    queue = Queue(server, models["ragged"])
    for width in (2, 3, 1):
        queue.add(width=width)

    assert queue.run() == [[3, 3, 0], [3, 3, 1], [3, 3, 2]]


def test_reshaped_inputs_keep_their_batch_dimension(server, models):
    queue = Queue(server, models["reshaped"])
    for rows in (2, 3):
        queue.add(rows=rows)

    assert queue.run() == [[2, 5, 0], [2, 5, 1]]
