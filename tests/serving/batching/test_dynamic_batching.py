"""Dynamic batching on a real server: which requests share an execute call, in which order, and which are refused.

Requests are gathered behind a gate: while one execute call waits there, the others queue.
"""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc
from support.server import ServerProcess
from support.waiting import until

from .batches import BatchModel, Request, metrics, statistics, wait_for_pending

_PATIENCE = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
_LEVELS = """priority_levels: 2 default_priority_level: 2 default_queue_policy { max_queue_size: 1 }
priority_queue_policy { key: 1 value { max_queue_size: 2 } }"""
_DELAY = "timeout_action: DELAY default_timeout_microseconds: 60000000 allow_timeout_override: true"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    repository = tmp_path_factory.mktemp("batching") / "models"
    batching = "max_batch_size: 8 dynamic_batching"
    return {
        name: BatchModel(repository, name, config, dims)
        for name, config, dims in (
            ("plain", f"{batching} {{ }}", "1"),
            ("delayed", f"{batching} {{ preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }}", "1"),
            ("brief", f"{batching} {{ preferred_batch_size: 4 max_queue_delay_microseconds: 20000 }}", "1"),
            ("small", f"{batching} {{ default_queue_policy {{ max_queue_size: 2 }} }}", "1"),
            ("hasty", f"{batching} {{ default_queue_policy {{ default_timeout_microseconds: 20000 }} }}", "1"),
            ("patient", f"{batching} {{ default_queue_policy {{ {_PATIENCE} }} }}", "1"),
            ("delays", f"max_batch_size: 1 dynamic_batching {{ default_queue_policy {{ {_DELAY} }} }}", "1"),
            (
                "policies",
                f"max_batch_size: 1 dynamic_batching {{ {_LEVELS} }}",
                "1",
            ),
            ("levels", f"{batching} {{ priority_levels: 2 default_priority_level: 2 }}", "1"),
            ("shapes", f"{batching} {{ }}", "-1"),
            ("ragged", f"{batching} {{ }}", "-1"),
            ("reshaped", f"{batching} {{ }}", "1 reshape { shape: [ ] }"),
            ("single", "dynamic_batching { }", "[1, 1]"),
            ("unbatched", "max_batch_size: 8", "1"),
        )
    }


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    config = models["ragged"].folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: -1", "dims: -1 allow_ragged_batch: true"))
    with ServerProcess(models["plain"].folder.parent, work=tmp_path_factory.mktemp("server")) as running:
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


def test_a_batch_is_never_larger_than_the_model_takes_and_no_request_is_split(server, models):
    queue = Queue(server, models["plain"])
    for rows in (3, 3, 3, 8):
        queue.add(rows=rows)

    assert queue.run() == [[2, 6, 0], [2, 6, 1], [1, 3, 0], [1, 8, 0]]


def test_without_dynamic_batching_each_request_has_a_call_of_its_own(server, models):
    queue = Queue(server, models["unbatched"])
    for rows in (1, 4):
        queue.add(rows=rows)

    assert queue.run() == [[1, 1, 0], [1, 4, 0]]
    assert [batch["batch_size"] for batch in statistics(server, models["unbatched"])["batch_stats"]] == [1, 4]


def test_a_model_without_a_batch_dimension_has_batches_of_one(server, models):
    queue = Queue(server, models["single"])
    queue.add()
    queue.add()

    assert queue.run() == [[1, 1, 0], [1, 1, 0]]


def test_a_preferred_size_ends_the_wait_for_more(server, models):
    requests = [Request(server, models["delayed"]) for _ in range(4)]

    assert sorted(request.batch for request in requests) == [[1, 4, 4, place] for place in range(4)]


def test_after_the_delay_an_incomplete_batch_is_executed(server, models):
    assert Request(server, models["brief"], rows=2).batch == [1, 1, 2, 0]


def test_requests_of_different_shapes_do_not_share_a_call(server, models):
    queue = Queue(server, models["shapes"])
    for width in (2, 2, 3, 2):
        queue.add(width=width)

    assert queue.run() == [[2, 2, 0], [2, 2, 1], [1, 1, 0], [1, 1, 0]]


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


def test_a_full_queue_refuses_at_once(server, models):
    queue = Queue(server, models["small"])
    queue.add()
    queue.add()

    assert Request(server, models["small"]).refusal == (503, "[request id: 7] Exceeds maximum queue size")
    assert queue.run() == [[2, 2, 0], [2, 2, 1]]


def test_a_request_that_waited_too_long_is_refused_and_counted(server, models):
    queue = Queue(server, models["hasty"])

    assert Request(server, models["hasty"]).refusal == (503, "Request timeout expired")
    assert queue.run() == []
    assert 'nv_inference_request_failure{model="hasty",reason="REJECTED",version="1"} 1' in metrics(server)
    assert statistics(server, models["hasty"])["inference_stats"]["fail"]["count"] == 1


def test_a_request_may_wait_for_less_time_than_the_model_allows(server, models):
    queue = Queue(server, models["patient"])
    queue.add()

    assert Request(server, models["patient"], timeout=20000).refusal == (503, "Request timeout expired")
    assert queue.run() == [[1, 1, 0]]


def test_more_urgent_requests_come_first(server, models):
    queue = Queue(server, models["levels"])
    late = queue.add(rows=8)
    urgent = queue.add(rows=8, priority=1)
    queue.run()

    assert urgent.batch[0] < late.batch[0]


def test_a_request_that_waited_too_long_may_be_put_behind_the_others(server, models):
    queue = Queue(server, models["delays"])
    late = queue.add(timeout=1000)
    patient = queue.add()
    last = queue.add()
    queue.run()

    assert patient.batch[0] < last.batch[0] < late.batch[0]


def test_each_level_has_a_queue_of_its_own(server, models):
    queue = Queue(server, models["policies"])
    low, high, higher = queue.add(priority=2), queue.add(priority=1), queue.add(priority=1)

    full = (503, "[request id: 7] Exceeds maximum queue size")
    assert [Request(server, models["policies"], priority=level).refusal for level in (0, 1, 2, 9)] == [full] * 4
    queue.run()
    assert high.batch[0] < higher.batch[0] < low.batch[0]


def test_a_request_that_leaves_the_queue_is_not_executed(server, models):
    queue = Queue(server, models["plain"])
    stays = queue.add()
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        leaves = client.async_infer("plain", [tensor], lambda result, error: None)
        wait_for_pending(server, models["plain"], 2)
        leaves.cancel()
        wait_for_pending(server, models["plain"], 1)
    queue.run()

    assert stays.batch[1:] == [1, 1, 0]
    assert 'nv_inference_request_failure{model="plain",reason="CANCELED",version="1"} 1' in metrics(server)


def test_a_test_may_hold_the_batcher_until_so_many_requests_wait(tmp_path):
    model = BatchModel(tmp_path / "models", "held", "max_batch_size: 8 dynamic_batching { }")
    environ = {"TRITONSERVER_DELAY_SCHEDULER": "3"}
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=environ) as server:
        requests = [Request(server, model) for _ in range(3)]

        assert sorted(request.batch for request in requests) == [[1, 3, 3, place] for place in range(3)]


def test_responses_leave_in_the_order_of_their_requests(tmp_path):
    model = BatchModel(tmp_path / "models", "ordered", "max_batch_size: 1 dynamic_batching { preserve_ordering: true }")
    config = model.folder / "config.pbtxt"
    config.write_text(config.read_text().replace("kind: KIND_CPU", "kind: KIND_CPU count: 2"))
    script = model.folder / "1" / "model.py"
    script.write_text(
        script.read_text()
        .replace('"gate"', '"gate" + self.instance')
        .replace(
            'self.folder = args["model_repository"]',
            'self.folder = args["model_repository"]\n        self.instance = args["model_instance_name"][-1]',
        )
        .replace('"began-%d" % self.calls', '"began-%s-%d" % (self.instance, self.calls)')
    )
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        (model.folder / "gate0").touch()
        first = Request(server, model)
        until((model.folder / "began-0-1").exists, "the first request's execution")
        second = Request(server, model)
        until((model.folder / "began-1-1").exists, "the second request's execution")
        until(lambda: statistics(server, model)["execution_count"] == 1, "the second request's end")

        assert not second.is_answered
        (model.folder / "gate0").unlink()
        assert first.batch == second.batch == [1, 1, 1, 0]
