"""A client may give a request up wherever that is: in a queue, behind its sequence, between the steps of an ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc
from serving.batching.batches import BatchModel, pending, statistics
from support.client_inputs import input_of
from support.server import ServerProcess
from support.waiting import until

ENSEMBLE = """
platform: "ensemble" max_batch_size: 1
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 4 }
ensemble_scheduling {
  step { model_name: "turns" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "BETWEEN" } }
  step { model_name: "after" model_version: -1 input_map { key: "IN" value: "BETWEEN" } output_map { key: "OUT" value: "OUT" } }
}
"""


class Call:
    """A request under way over gRPC."""

    def __init__(self, client, model, **options):
        tensor = input_of(tritonclient.grpc, "IN", np.zeros((1, 1), dtype=np.float32))
        self.ends = []
        self._call = client.async_infer(
            model, [tensor], callback=lambda result, error: self.ends.append((result, error)), **options
        )

    def cancel(self):
        self._call.cancel()

    @property
    def status(self):
        """Its status, once it has ended."""
        until(lambda: self.ends, "the end of the call")
        error = self.ends[0][1]
        return "OK" if error is None else str(error.status())


@pytest.fixture(scope="module")
def models(work):
    folder = work / "models"
    made = {
        "plain": BatchModel(folder, "plain", "max_batch_size: 1"),
        "turns": BatchModel(folder, "turns", "max_batch_size: 1"),
        "after": BatchModel(folder, "after", "max_batch_size: 1"),
    }
    for name, old in (("turns", "TYPE_INT32 dims: 4"), ("after", "TYPE_FP32 dims: 1")):
        config = made[name].folder / "config.pbtxt"
        config.write_text(config.read_text().replace(old, "TYPE_INT32 dims: 4"))
    (folder / "chain" / "1").mkdir(parents=True)
    (folder / "chain" / "config.pbtxt").write_text(ENSEMBLE)
    return made


@pytest.fixture(scope="module")
def server(models, work):
    with ServerProcess(next(iter(models.values())).folder.parent, work=work) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as made:
        yield made


def failures(server, model, reason="CANCELED"):
    line = f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}} '
    return next(float(text[len(line) :]) for text in server.metrics().splitlines() if text.startswith(line))


def test_a_request_in_the_queue_of_a_model_without_batching_is_cancelled(server, models, client):
    plain = models["plain"]
    plain.close_gate()
    first = Call(client, "plain")
    plain.wait_for_call(1)  # calls made while a channel connects may come in any order
    second, third = (Call(client, "plain") for _ in range(2))
    until(lambda: pending(server, plain) == 2, "two that wait")
    second.cancel()
    assert "CANCELLED" in second.status
    until(lambda: pending(server, plain) == 1, "one that waits")
    plain.open_gate()
    assert (first.status, third.status) == ("OK", "OK")
    assert statistics(server, plain)["execution_count"] == 2
    assert failures(server, "plain") == 1


def test_an_ensemble_is_cancelled_between_its_steps(server, models, client):
    turns = models["turns"]
    before, after = (statistics(server, models[name])["execution_count"] for name in ("turns", "after"))
    turns.close_gate()
    call = Call(client, "chain")
    turns.wait_for_call(before + 1)
    call.cancel()
    assert "CANCELLED" in call.status
    turns.open_gate()
    until(lambda: statistics(server, turns)["execution_count"] == before + 1, "the first step's end")
    assert Call(client, "chain").status == "OK"
    assert statistics(server, models["after"])["execution_count"] == after + 1
