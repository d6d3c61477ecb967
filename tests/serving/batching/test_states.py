"""Implicit state on a real server: tensors that the server keeps for each sequence and gives the model back."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving.asking import Ask
from support.client_inputs import input_of
from support.model_files import python_config, write_files
from support.server import ServerProcess

MODEL = """
'''Adds IN to the state S; OUT: what it was given, as JSON. A negative IN is an error, 99 leaves the state alone.'''

def initialize(self, args):
    self.folder = args["model_repository"]
    config = json.loads(args["model_config"])
    self.initial = config["sequence_batching"]["state"]

def execute(self, requests):
    while os.path.exists(os.path.join(self.folder, "gate")):
        time.sleep(0.01)
    rows = [{tensor.name(): self.see(tensor) for tensor in request.inputs()} for request in requests]
    return [self.answer(request, rows, place) for place, request in enumerate(requests)]

def see(self, tensor):
    array = tensor.as_numpy()
    return [str(array.dtype), list(array.shape), array.astype(str).ravel().tolist()]

def answer(self, request, rows, place):
    value = float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
    state = pb_utils.get_input_tensor_by_name(request, "S_IN").as_numpy()
    if value < 0:
        return pb_utils.InferenceResponse([pb_utils.Tensor("S_OUT", state + 1000)], pb_utils.TritonError("no"))
    seen = {"pid": os.getpid(), "rows": rows, "place": place, "outputs": sorted(request.requested_output_names())}
    out = pb_utils.Tensor("OUT", np.array([[json.dumps(seen)]], dtype=object))
    if value == 99:
        return pb_utils.InferenceResponse([out])
    return pb_utils.InferenceResponse([pb_utils.Tensor("S_OUT", self.next(state, value)), out])

def next(self, state, value):
    if state.dtype == object:
        return np.array([[b"%s|%d" % (state.ravel()[0], value)]], dtype=object)
    if value == 50:
        return np.zeros((1, 4000, 5), dtype=state.dtype)
    if value == 60:
        return np.full((1, 2), 0.5, dtype=np.float64)
    return (state + value).astype(state.dtype)
"""


def state(dims, initial="", *, kind="TYPE_INT32", more=""):
    start = f'initial_state {{ name: "start" data_type: {kind} {initial} }}' if initial else ""
    return f'state {{ input_name: "S_IN" output_name: "S_OUT" data_type: {kind} dims: {dims} {start} {more} }}'


READY = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }'
MODELS = {
    "plain": (f"direct {{ }} {state('[ 2 ]')}", 1, ""),
    "declared": (
        state("[ 2 ]", "dims: 2 zero_data: true"),
        1,
        'output { name: "S_OUT" data_type: TYPE_INT32 dims: 2 }',
    ),
    "strings": (state("[ 1 ]", 'dims: 1 data_file: "text"', kind="TYPE_STRING"), 1, ""),
    "grows": (state("[ -1, 5 ]", more="use_same_buffer_for_input_output: true use_growable_memory: true"), 1, ""),
    "oldest": (f"oldest {{ max_candidate_sequences: 4 }} {state('[ 2 ]')}", 2, ""),
    "rows": (f"direct {{ }} {READY} {state('[ 2 ]')}", 3, ""),
    "named": (state("[ 1 ]", kind="TYPE_STRING"), 1, ""),
}


def write(folder, name, batching, rows, more):
    batching += " max_sequence_idle_microseconds: 60000000"  # a second may pass between two requests on a busy machine
    dims = "1" if rows else "1 1"
    more += f" max_batch_size: {rows} sequence_batching {{ {batching} }} instance_group {{ kind: KIND_CPU }}"
    model = write_files(folder, name, python_config(f"IN FP32 {dims}", f"OUT STRING {dims}", more), MODEL).parent
    (model / "initial_state").mkdir()
    (model / "initial_state" / "text").write_bytes(struct.pack("<I", 2) + b"hi")


@pytest.fixture(scope="module")
def server(work):
    for name, (batching, rows, more) in MODELS.items():
        write(work / "models", name, batching, rows, more)
    with ServerProcess(work / "models", work=work) as running:
        yield running


def seen(server, model, sequence, flags="", value=1, name="S_IN"):
    """What the model was given as its state with a request."""
    told = Ask(server, model, sequence, flags, value=value).seen
    return told["rows"][told["place"]][name]


def sums(server, model, sequence, *values):
    """The first element of the state that each request of a new sequence finds."""
    return [seen(server, model, sequence, "" if index else "start", value)[2][0] for index, value in enumerate(values)]


def test_a_sequence_gets_the_state_that_it_stored(server):
    told = [seen(server, "plain", 1, flags, value) for flags, value in (("start", 2), ("", 3), ("end", 4))]
    assert told == [["int32", [1, 2], [n, n]] for n in "025"]


def test_the_start_of_a_sequence_resets_its_state(server):
    assert sums(server, "plain", 2, 5, 5) == ["0", "5"]
    assert sums(server, "plain", 2, 1, 1) == ["0", "1"]
    assert seen(server, "plain", 2, "start end", 1)[2] == ["0", "0"]
    assert seen(server, "plain", 2, "start end", 1)[2] == ["0", "0"]


def test_an_error_leaves_the_state_as_it_was(server):
    assert sums(server, "plain", 5, 3) == ["0"]
    assert Ask(server, "plain", 5, value=-1).refusal == (500, "no")
    assert seen(server, "plain", 5, "end")[2] == ["3", "3"]


def test_a_response_without_the_state_leaves_it_as_it_was(server):
    assert sums(server, "plain", 6, 3, 99, 1) == ["0", "3", "3"]
    Ask(server, "plain", 6, "end").finish()


def test_a_state_is_no_output_unless_it_is_declared_as_one(server):
    reply = Ask(server, "plain", 7, "start").reply
    assert [output["name"] for output in reply.json()["outputs"]] == ["OUT"]
    assert json.loads(reply.json()["outputs"][0]["data"][0])["outputs"] == ["OUT"]
    assert [tensor["name"] for tensor in server.get("/v2/models/plain").json()["outputs"]] == ["OUT"]
    document = {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
        "outputs": [{"name": "S_OUT"}],
        "parameters": {"sequence_id": 7},
    }
    refused = server.post("/v2/models/plain/infer", document)
    assert (refused.status, refused.error) == (400, "unexpected inference output 'S_OUT' for model 'plain'")
    Ask(server, "plain", 7, "end").finish()


@pytest.mark.parametrize("client", [tritonclient.http, tritonclient.grpc])
def test_a_declared_state_goes_to_clients_that_ask_for_it(server, client):
    port = server.http_port if client is tritonclient.http else server.grpc_port
    tensor = input_of(client, "IN", np.array([[4]], dtype=np.float32))
    with client.InferenceServerClient(f"127.0.0.1:{port}") as asking:

        def names(flags, *outputs):
            wanted = [client.InferRequestedOutput(name) for name in outputs] or None
            result = asking.infer("declared", [tensor], sequence_id=9, outputs=wanted, **flags)
            found = {name: result.as_numpy(name) for name in ("OUT", "S_OUT")}
            return {name: value for name, value in found.items() if value is not None}

        assert names({"sequence_start": True})["S_OUT"].tolist() == [[4, 4]]
        assert list(names({}, "OUT")) == ["OUT"]
        assert names({}, "S_OUT")["S_OUT"].tolist() == [[12, 12]]
        told = json.loads(names({"sequence_end": True})["OUT"].ravel()[0])
        assert told["rows"][0]["S_IN"][2] == ["12", "12"]


def test_states_may_be_strings(server):
    assert sums(server, "strings", 1, 1, 2) == ["hi", "hi|1"]
    assert seen(server, "strings", 1, "end")[2] == ["hi|1|2"]
    assert seen(server, "named", 1, "start end") == ["object", [1, 1], [""]]


def test_a_state_may_change_its_shape_and_its_type(server):
    found = [seen(server, "grows", 1, flags, value)[:2] for flags, value in (("start", 50), ("", 60), ("end", 1))]
    assert found == [["int32", [1, 1, 5]], ["int32", [1, 4000, 5]], ["float64", [1, 2]]]


def test_rows_without_a_request_hold_zeros(server):
    Ask(server, "rows", 1, "start", value=1).finish()
    Ask(server, "rows", 2, "start", value=2).finish()
    assert Ask(server, "rows", 2, value=3).seen["rows"] == [
        {
            "IN": ["float32", [1, 1], ["0.0"]],
            "READY": ["bool", [1, 1], ["False"]],
            "S_IN": ["int32", [1, 2], ["0", "0"]],
        },
        {
            "IN": ["float32", [1, 1], ["3.0"]],
            "READY": ["bool", [1, 1], ["True"]],
            "S_IN": ["int32", [1, 2], ["2", "2"]],
        },
    ]
    assert seen(server, "rows", 1, "end")[2] == ["1", "1"]
    assert seen(server, "rows", 2, "end")[2] == ["5", "5"]


def test_requests_that_share_a_call_keep_their_states_apart(server, work):
    for sequence in (1, 2):
        Ask(server, "oldest", sequence, "start", value=sequence).finish()
    gate = work / "models" / "oldest" / "gate"
    gate.touch()
    asked = [Ask(server, "oldest", sequence, "", value=10) for sequence in (1, 2, 1, 2)]
    gate.unlink()
    for each in asked:
        each.finish()
    assert [seen(server, "oldest", sequence, "end")[2][0] for sequence in (1, 2)] == ["21", "22"]
