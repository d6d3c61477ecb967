"""Models that are loaded by their first request: by clients of each protocol, by ensembles and by other models."""

from __future__ import annotations

import numpy as np
import pytest
from serving.ensembles.ensembles import DECOUPLED, REPEAT, ask, outputs, write_ensemble, write_function, write_model
from serving.repositories import index, infer, is_model_ready, values
from support.console import shown_model, shown_models
from support.server import ServerProcess
from tritonclient.grpc import InferenceServerClient, InferInput

PINNED = 'parameters { key: "demand" value { string_value: "pinned" } }\n'
CALLS = """
def answer(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN")
    called = pb_utils.InferenceRequest(model_name="called", inputs=[given], requested_output_names=["OUT"])
    return self.output(pb_utils.get_output_tensor_by_name(called.exec(), "OUT").as_numpy())
"""


@pytest.fixture(scope="module")
def server(work):
    models = work / "models"
    for name in ("plain", "quiet", "over_grpc", "first", "second", "called"):
        write_function(models, name, "x + 1")
    write_function(models, "stays", "x + 1", PINNED)
    write_model(models, "calls", CALLS)
    write_model(models, "streams", REPEAT, DECOUPLED)
    write_ensemble(models, "both", "first IN=X > OUT=M", "second IN=M > OUT=Y")
    with ServerProcess(models, "--model-control-mode=demand", "--log-verbose=0", "--ui=true", work=work) as running:
        yield running


def loads_of(server, model):
    return server.log.count(f"loading: {model}:1")


def test_metadata_and_readiness_are_answered_without_loading(server):
    assert server.get("/v2/health/ready").status == 200
    assert is_model_ready(server, "quiet")
    assert index(server)["quiet"]["state"] == "READY"
    assert server.get("/v2/models/quiet").json()["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1]}]
    assert server.get("/v2/models/quiet/config").json()["output"][0]["data_type"] == "TYPE_FP32"
    assert server.get("/v2/models/quiet/stats").json()["model_stats"][0]["inference_count"] == 0
    assert server.samples("naiad_demand_models")['naiad_demand_models{state="dormant"}'] >= 1
    assert "quiet" not in server.samples("naiad_guests_alive")
    shown = {model["name"]: (model["state"], model["demand"]) for model in shown_models(server)}
    assert (shown["quiet"], shown["stays"]) == (("READY", "dormant"), ("READY", ""))
    quiet = 'naiad_demand_model_state{model="quiet",state="dormant"}'
    assert server.samples('naiad_demand_model_state{model="quiet"') == {quiet: 1}
    assert server.samples('naiad_demand_model_state{model="stays"') == {}
    assert shown_model(server, "quiet")["demand"] == "dormant"
    assert loads_of(server, "stays") == 1, "a pinned model is loaded at the start"


def test_the_first_request_loads_the_model_and_counters_go_on(server):
    assert values(infer(server, "plain", 1)) == [2]
    assert values(infer(server, "plain", 5)) == [6]
    assert shown_model(server, "plain")["demand"] == "loaded"
    plain = 'naiad_demand_model_state{model="plain",state="loaded"}'
    assert server.samples('naiad_demand_model_state{model="plain"') == {plain: 1}
    assert loads_of(server, "plain") == 1
    assert server.get("/v2/models/plain/stats").json()["model_stats"][0]["inference_count"] == 2
    assert server.samples('naiad_demand_loads_total{model="plain"}') == {'naiad_demand_loads_total{model="plain"}': 1}
    assert server.samples('naiad_model_memory_bytes{model="plain"}').popitem()[1] > 1 << 20


def test_an_ensemble_loads_the_models_of_its_steps(server):
    assert outputs(ask(server, "both", 1)) == {"Y": [3]}
    assert (loads_of(server, "first"), loads_of(server, "second")) == (1, 1)


def test_a_model_that_calls_another_one_loads_that(server):
    assert values(infer(server, "calls", 1)) == [2]
    assert loads_of(server, "called") == 1


def test_a_request_over_grpc_and_a_stream_load_their_models(server):
    client = InferenceServerClient(server.grpc_url)
    tensor = InferInput("IN", [2], "FP32")
    tensor.set_data_from_numpy(np.array([1, 2], np.float32))
    assert client.infer("over_grpc", [tensor]).as_numpy("OUT").tolist() == [2, 3]
    client.close()
    reply = server.post("/v2/models/streams/generate_stream", {"IN": [4, 5]})
    assert reply.body.count(b"data:") == 2


def test_load_and_unload_requests_are_refused(server):
    reply = server.post("/v2/repository/models/plain/unload")
    assert (reply.status, reply.error) == (
        503,
        "explicit model load / unload is not allowed with --model-control-mode=demand: requests load models",
    )
