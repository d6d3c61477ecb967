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
MEETS = """
def answer(self, request):
    folder = os.environ["MEETING_FOLDER"]
    open(os.path.join(folder, "%s"), "w").close()
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(folder, "%s")):
        if time.monotonic() > deadline:
            raise pb_utils.TritonModelException("nobody came")
        time.sleep(0.01)
    return self.output(self.input(request))
"""
ADDS = """
def answer(self, request):
    more = self.input(request, "MORE")
    return self.output(self.input(request) + (10 if more is None else more))
"""
TWO_INPUTS = (
    'input { name: "IN" data_type: TYPE_FP32 dims: -1 }\n'
    'input { name: "MORE" data_type: TYPE_FP32 dims: -1 optional: true }\n'
    'output { name: "OUT" data_type: TYPE_FP32 dims: -1 }\n'
)
CALLS = """
def answer(self, request):
    tensor = pb_utils.Tensor("X", self.input(request))
    called = pb_utils.InferenceRequest(model_name="%s", requested_output_names=["Y"], inputs=[tensor])
    response = called.exec()
    if response.has_error():
        return pb_utils.InferenceResponse([], pb_utils.TritonError(response.error().message()))
    return self.output(response.output_tensors()[0].as_numpy())
"""
COUNTS = """
def answer(self, request):
    folder = os.environ["MEETING_FOLDER"]
    own = os.path.join(folder, "busy-%d" % os.getpid())
    open(own, "w").close()
    busy = len([name for name in os.listdir(folder) if name.startswith("busy")])
    time.sleep(0.02)
    os.remove(own)
    return self.output(np.array([busy], np.float32))
"""
SEQUENCES = """
def answer(self, request):
    response = self.output(self.input(request))
    response.set_parameters({"sequence_id": 5, "sequence_start": True})
    return response
"""


WAITS = """
def answer(self, request):
    folder = os.environ["MEETING_FOLDER"]
    open(os.path.join(folder, "began"), "w").close()
    deadline = time.monotonic() + 20
    while not request.is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.01)
    open(os.path.join(folder, "heard"), "w").close()
    return self.output(self.input(request))
"""
GOES_ON = """
def answer(self, request):
    open(os.path.join(os.environ["MEETING_FOLDER"], "went on"), "w").close()
    return self.output(self.input(request))
"""


def write_models(folder):
    write_function(folder, "plus", "x + 1")
    write_function(folder, "twice", "x * 2")
    write_function(folder, "same", "x")
    write_function(folder, "batched", "x + 1", "max_batch_size: 4\n")
    write_function(folder, "fails", "1 / 0")
    write_model(folder, "repeat", REPEAT, DECOUPLED)
    write_model(folder, "tells", TELLS, tensors=TOLD)
    write_model(folder, "adds", ADDS, tensors=TWO_INPUTS)
    write_model(folder, "meets_left", MEETS % ("left", "right"))
    write_model(folder, "meets_right", MEETS % ("right", "left"))
    write_model(folder, "counts", COUNTS, "instance_group { count: 3 }\n")
    write_model(folder, "waits", WAITS)
    write_model(folder, "goes_on", GOES_ON)
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
    write_ensemble(folder, "some", "plus IN=X > OUT=Y", "fails IN=X > OUT=Z", outputs="Y FP32 -1,Z FP32 -1")
    write_ensemble(folder, "told", "plus IN=X > OUT=A", "tells IN=A > OUT=Y", outputs="Y STRING 1")
    write_ensemble(
        folder,
        "meeting",
        "meets_left IN=X > OUT=Y",
        "meets_right IN=X > OUT=Z",
        outputs="Y FP32 -1,Z FP32 -1",
    )
    write_ensemble(folder, "optional", "adds IN=X,MORE=Z > OUT=Y", inputs="X FP32 -1,Z FP32 -1 optional")
    write_ensemble(folder, "of_batched", "batched IN=X > OUT=A", "twice IN=A > OUT=Y", inputs="X FP32 3")
    write_ensemble(folder, "batching", "batched IN=X > OUT=A", "batched IN=A > OUT=Y", extra="max_batch_size: 4\n")
    write_ensemble(folder, "patient", "waits IN=X > OUT=A", "goes_on IN=A > OUT=Y")
    write_ensemble(folder, "of_calling", "plus IN=X > OUT=A", "calls_chain IN=A > OUT=Y")
    write_ensemble(folder, "ring", "plus IN=X > OUT=A", "calls_ring IN=A > OUT=Y")
    write_ensemble(
        folder, "classes", "same IN=X > OUT=A", "labelled IN=A > OUT=Y", inputs="X FP32 3", outputs="Y FP32 3"
    )
    if not REFERENCE:  # 2.51 does not know the field
        write_ensemble(folder, "limited", "repeat IN=X > OUT=A", "counts IN=A > OUT=Y", limit=1)


@pytest.fixture(scope="module")
def meeting_place(tmp_path_factory):
    return tmp_path_factory.mktemp("meeting")


@pytest.fixture(scope="module")
def server(tmp_path_factory, meeting_place):
    work = tmp_path_factory.mktemp("ensembles")
    models = work / "models"
    write_models(models)
    write_ensembles(models)
    environ = {"MEETING_FOLDER": str(meeting_place)}
    with ServerProcess(models, work=work, command=[REFERENCE or TRITONSERVER], environ=environ, timeout=90) as running:
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


def test_branches_run_side_by_side(server):
    assert outputs(ask(server, "meeting", 1)) == {"Y": [1], "Z": [1]}


def test_steps_without_a_requested_output_do_not_run(server):
    assert outputs(ask(server, "some", 1, outputs=[{"name": "Y"}])) == {"Y": [2]}
    assert ask(server, "some", 1, outputs=[{"name": "Z"}]).status == 500
    assert ask(server, "some", 1).status == 500


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


def test_inputs_may_be_optional_all_the_way(server):
    more = {"name": "Z", "datatype": "FP32", "shape": [1], "data": [5]}
    x = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
    assert outputs(server.post("/v2/models/optional/infer", {"inputs": [x, more]})) == {"Y": [6]}
    assert outputs(server.post("/v2/models/optional/infer", {"inputs": [x]})) == {"Y": [11]}


def test_models_with_and_without_batches_go_together(server):
    reply = ask(server, "of_batched", 1, 2, 3)
    assert outputs(reply) == {"Y": [4, 6, 8]}
    x = {"name": "X", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    reply = server.post("/v2/models/batching/infer", {"inputs": [x]})
    assert reply.json()["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [2, 2], "data": [3, 4, 5, 6]}]


def test_classes_have_the_labels_of_the_model_that_made_the_output(server):
    asked = [{"name": "Y", "parameters": {"classification": 2}}]
    assert outputs(ask(server, "classes", 1, 3, 2, outputs=asked)) == {"Y": ["3.000000:1:dog", "2.000000:2:bird"]}


def test_large_tensors_go_from_step_to_step(server):
    array = np.arange(1 << 20, dtype=np.float32)
    with InferenceServerClient(server.grpc_url) as client:
        tensor = InferInput("X", [array.size], "FP32")
        tensor.set_data_from_numpy(array)
        for _ in range(20):
            np.testing.assert_array_equal(client.infer("chain", [tensor]).as_numpy("Y"), (array + 1) * 2)


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


def test_a_decoupled_step_may_send_nothing(server):
    stream = Stream(server, "stream")
    assert (stream.values, stream.errors) == ([], [])


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


@ours
def test_no_more_requests_of_a_step_run_at_once_than_allowed(server):
    threads = []
    found = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.extend(Stream(server, "limited", *range(8)).values))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(60)
    assert found == [1] * 24


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


def failures(server, model):
    return server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]["inference_stats"]["fail"]["count"]


def test_a_cancelled_request_begins_no_further_step(server, meeting_place):
    with InferenceServerClient(server.grpc_url) as client:
        tensor = InferInput("X", [1], "FP32")
        tensor.set_data_from_numpy(np.array([1], np.float32))
        call = client.async_infer("patient", [tensor], callback=lambda result, error: None)
        server.wait_for((meeting_place / "began").exists, "the first step to begin")
        call.cancel()
        server.wait_for((meeting_place / "heard").exists, "the first step to hear of it")
    assert outputs(ask(server, "chain", 1)) == {"Y": [4]}
    server.wait_for(lambda: failures(server, "patient"), "the request to be counted")
    assert not (meeting_place / "went on").exists()
