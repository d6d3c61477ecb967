"""Ensembles asked by real clients. With NAIAD_REFERENCE set, the reference is asked instead (see `contract`)."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from serving.contract import REFERENCE, ours
from serving.ensembles.ensembles import DECOUPLED, REPEAT, ask, outputs, write_ensemble, write_function, write_model
from support.server import TRITONSERVER, ServerProcess
from tritonclient.grpc import InferenceServerClient, InferInput

TELLS = """
def answer(self, request):
    told = {
        "id": request.request_id(),
        "correlation": request.correlation_id(),
        "flags": request.flags(),
        "parameters": json.loads(request.parameters() or "{}"),
        "timeout": request.timeout(),
        "outputs": sorted(request.requested_output_names()),
    }
    return self.output(np.array([json.dumps(told).encode()], np.object_))
"""
TOLD = 'input { name: "IN" data_type: TYPE_FP32 dims: -1 }\noutput { name: "OUT" data_type: TYPE_STRING dims: 1 }\n'
CALLS = """
def answer(self, request):
    tensor = pb_utils.Tensor("X", self.input(request))
    called = pb_utils.InferenceRequest(model_name="%s", requested_output_names=["Y"], inputs=[tensor])
    response = called.exec()
    if response.has_error():
        return pb_utils.InferenceResponse([], pb_utils.TritonError(response.error().message()))
    return self.output(response.output_tensors()[0].as_numpy())
"""


def write_models(folder):
    write_function(folder, "plus", "x + 1")
    write_function(folder, "twice", "x * 2")
    write_function(folder, "same", "x")
    write_function(folder, "fails", "1 / 0")
    write_model(folder, "repeat", REPEAT, DECOUPLED)
    write_model(folder, "tells", TELLS, tensors=TOLD)
    write_model(folder, "calls_chain", CALLS % "chain")
    write_model(folder, "calls_ring", CALLS % "ring")
    labelled = 'output { name: "OUT" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }\n'
    write_function(folder, "labelled", "x", tensors='input { name: "IN" data_type: TYPE_FP32 dims: 3 }\n' + labelled)
    (folder / "labelled" / "labels.txt").write_text("cat\ndog\nbird\n")


def write_ensembles(folder):
    write_ensemble(folder, "chain", "plus IN=X > OUT=A", "twice IN=A > OUT=Y")
    write_ensemble(folder, "failing", "plus IN=X > OUT=A", "fails IN=A > OUT=Y")
    write_ensemble(folder, "nested", "chain X=X > Y=A", "failing X=A > Y=Y")
    write_ensemble(folder, "stream", "repeat IN=X > OUT=A", "twice IN=A > OUT=Y")
    write_ensemble(folder, "stream_fails", "repeat IN=X > OUT=A", "fails IN=A > OUT=Y")
    write_ensemble(folder, "told", "plus IN=X > OUT=A", "tells IN=A > OUT=Y", outputs="Y STRING 1")
    write_ensemble(folder, "of_calling", "plus IN=X > OUT=A", "calls_chain IN=A > OUT=Y")
    write_ensemble(folder, "ring", "plus IN=X > OUT=A", "calls_ring IN=A > OUT=Y")
    write_ensemble(
        folder, "classes", "same IN=X > OUT=A", "labelled IN=A > OUT=Y", inputs="X FP32 3", outputs="Y FP32 3"
    )


@pytest.fixture(scope="module")
def server(work):
    models = work / "models"
    write_models(models)
    write_ensembles(models)
    with ServerProcess(models, work=work, command=[REFERENCE or TRITONSERVER], timeout=90) as running:
        yield running


def test_steps_run_one_after_the_other(server):
    reply = ask(server, "chain", 1, 2, id="7")
    assert outputs(reply) == {"Y": [4, 6]}
    document = reply.json()
    assert (document["model_name"], document["model_version"], document["id"]) == ("chain", "1", "7")
    assert document["parameters"] == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


def test_metadata_and_configuration_are_the_ensembles_own(server):
    assert server.get("/v2/models/chain").json() == {
        "name": "chain",
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1]}],
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": [-1]}],
    }
    config = server.get("/v2/models/chain/config").json()
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert config["instance_group"] == []
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == ["plus", "twice"]
    assert server.get("/v2/models/stream/config").json()["model_transaction_policy"] == {"decoupled": True}


def test_requests_are_checked_against_the_ensemble(server):
    wrong = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}]}
    reply = server.post("/v2/models/chain/infer", wrong)
    assert (reply.status, reply.error) == (
        400,
        "[request id: <id_unknown>] inference input 'X' data-type is 'INT32', but model 'chain' expects 'FP32'",
    )
    assert ask(server, "chain", 1, outputs=[{"name": "Z"}]).error == "unexpected inference output 'Z' for model 'chain'"


def test_an_error_of_a_step_names_the_ensembles_it_came_through(server):
    reply = ask(server, "failing", 1)
    assert reply.status == 500
    start = "Failed to process the request(s) for model 'fails_0', message: ZeroDivisionError: division by zero"
    assert reply.error.startswith(f"in ensemble 'failing', {start}")
    assert ask(server, "nested", 1).error.startswith(f"in ensemble 'nested', in ensemble 'failing', {start}")


def test_the_id_and_parameters_of_a_request_reach_every_step(server):
    parameters = {"sequence_id": 42, "sequence_start": True, "timeout": 30_000_000, "mood": "good"}
    reply = ask(server, "told", 1, id="me", parameters=parameters)
    assert json.loads(outputs(reply)["Y"][0]) == {
        "id": "me",
        "correlation": 42,
        "flags": 1,
        "parameters": {"mood": "good"},
        "timeout": 30_000_000,
        "outputs": ["OUT"],
    }
    assert reply.json()["parameters"] == {"sequence_id": 42, "sequence_start": True, "sequence_end": False}


def test_classes_have_the_labels_of_the_model_that_made_the_output(server):
    asked = [{"name": "Y", "parameters": {"classification": 2}}]
    assert outputs(ask(server, "classes", 1, 3, 2, outputs=asked)) == {"Y": ["3.000000:1:dog", "2.000000:2:bird"]}


class Stream:
    """One request on a gRPC stream, and what came back."""

    def __init__(self, server, model, *values):
        self.values = []
        self.errors = []
        self._changed = threading.Condition()
        self._is_ended = False
        self._client = InferenceServerClient(server.grpc_url)
        self._client.start_stream(self._came)
        tensor = InferInput("X", [len(values)], "FP32")
        tensor.set_data_from_numpy(np.array(values, np.float32))
        self._client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_ended, 30), (self.values, self.errors)
        self._client.stop_stream()
        self._client.close()

    def _came(self, result, error):
        with self._changed:
            if error is not None:
                self.errors.append(error.message())
                self._is_ended = True
            else:
                response = result.get_response()
                if response.outputs:
                    self.values.append(float(result.as_numpy("Y")[0]))
                self._is_ended = response.parameters["triton_final_response"].bool_param
            self._changed.notify_all()


def test_each_response_of_a_decoupled_step_goes_down_the_stream(server):
    stream = Stream(server, "stream", *range(50))
    assert stream.errors == []
    assert sorted(stream.values) == [2 * value for value in range(50)]


def test_an_error_behind_a_decoupled_step_ends_the_stream(server):
    stream = Stream(server, "stream_fails", 1, 2, 3)
    assert stream.values == []
    assert len(stream.errors) == 1
    assert stream.errors[0].startswith("in ensemble 'stream_fails', Failed to process the request(s)")


def test_a_decoupled_ensemble_streams_events_and_refuses_single_answers(server):
    assert ask(server, "stream", 1).error == "HTTP end point doesn't support models with decoupled transaction policy"
    events = server.post("/v2/models/stream/generate_stream", {"X": [1, 2, 3]}).body.decode().split("\n\n")
    assert [json.loads(event[len("data: ") :])["Y"] for event in events if event.strip()] == [2, 4, 6]


def test_models_may_call_ensembles_and_be_steps(server):
    assert outputs(ask(server, "calls_chain", 1, name="IN")) == {"OUT": [4]}
    assert outputs(ask(server, "of_calling", 1)) == {"Y": [6]}


@ours
def test_a_step_that_calls_its_own_ensemble_gets_an_error(server):
    reply = ask(server, "ring", 1)
    assert reply.status == 500
    assert "the call can never be answered" in reply.error
    assert reply.error.startswith("in ensemble 'ring', ")
    assert outputs(ask(server, "of_calling", 1)) == {"Y": [6]}


def test_requests_are_counted_for_the_ensemble_and_for_its_models(server):
    def counts(model):
        [stats] = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
        found = stats["inference_stats"]
        return stats["inference_count"], stats["execution_count"], found["success"]["count"], found["fail"]["count"]

    before, plus = counts("nested"), counts("plus")
    chain = counts("chain")
    ask(server, "nested", 1)
    server.wait_for(lambda: counts("nested")[3] > before[3], "the failure to be counted")
    assert counts("nested")[:3] == before[:3]
    assert counts("chain") == (chain[0] + 1, chain[1] + 1, chain[2] + 1, chain[3])
    assert counts("plus")[2] == plus[2] + 2
    stats = server.get("/v2/models/chain/stats").json()["model_stats"][0]["inference_stats"]
    spent = sum(stats[name]["ns"] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < stats["compute_infer"]["ns"] <= spent <= stats["success"]["ns"] + 1
