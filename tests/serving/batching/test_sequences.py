"""Sequence batching on a real server: who shares an execute call, what the model is told, and how sequences end."""

from __future__ import annotations

import os
import queue
import signal

import numpy as np
import pytest
import tritonclient.grpc
from serving.asking import Ask
from support.client_inputs import input_of
from support.model_files import python_config, write_files
from support.server import ServerProcess

MODEL = """
'''OUT: the whole call as JSON, and which row of it this is; waits while `gate` is there.'''

def initialize(self, args):
    self.calls = 0
    self.name = args["model_instance_name"]
    self.folder = args["model_repository"]

def execute(self, requests):
    self.calls += 1
    open(os.path.join(self.folder, "began-%s-%d" % (self.name, self.calls)), "w").close()
    while os.path.exists(os.path.join(self.folder, "gate")):
        time.sleep(0.01)
    rows = []
    for request in requests:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        rows.append({
            "id": request.correlation_id(),
            "flags": request.flags(),
            "pid": os.getpid(),
            "tensors": {name: [str(t.dtype), list(t.shape), t.astype(str).ravel().tolist()] for name, t in tensors.items()},
        })
    call = {"call": self.calls, "instance": self.name, "rows": rows}
    return [
        pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([[json.dumps(dict(call, place=place))]], dtype=object))]
        )
        for place in range(len(requests))
    ]
"""
ITERATIVE = """
'''Looks at a request as often as it says; OUT lists the flags it came with.'''

def initialize(self, args):
    self.seen = {}

def respond(self, request):
    times = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
    seen = self.seen.setdefault(request.correlation_id(), [])
    seen.append(request.flags())
    if len(seen) < times:
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return None
    del self.seen[request.correlation_id()]
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[str(seen)]], dtype=object))])
"""
DECOUPLED = """
'''Counts down from what a request says, a response each time it looks at it.'''

def initialize(self, args):
    self.left = {}

def execute(self, requests):
    for request in requests:
        sequence, sender = request.correlation_id(), request.get_response_sender()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.left[sequence] = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
        left = self.left[sequence] = self.left[sequence] - 1
        tensor = pb_utils.Tensor("OUT", np.array([["%d" % left]], dtype=object))
        sender.send(pb_utils.InferenceResponse([tensor]))
        if left:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONTROLS = """control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
  { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] }
]"""
PATIENT = "max_sequence_idle_microseconds: 60000000"
"""As long as no test takes: unless told, a sequence is lost that sends nothing for a second."""
SEQUENCES = {
    "direct": ("direct { } " + CONTROLS % "TYPE_UINT64", 3, 1),
    "named": ("direct { } " + CONTROLS % "TYPE_STRING", 0, 1),
    "iterative": ("iterative_sequence: true", 2, 1),
    "countdown": ("iterative_sequence: true", 2, 1),
    "steady": ("direct { }", 1, 1),
}


def write(folder, name, sequence_batching, rows, instances):
    if "max_sequence_idle" not in sequence_batching:
        sequence_batching += f" {PATIENT}"
    dims = "1" if rows else "1 1"
    more = (
        f"max_batch_size: {rows} instance_group {{ kind: KIND_CPU count: {instances} }} "
        f"sequence_batching {{ {sequence_batching} }} "
        f"model_transaction_policy {{ decoupled: {str(name == 'countdown').lower()} }}"
    )
    config = python_config(f"IN FP32 {dims},TEXT STRING {dims} optional", f"OUT STRING {dims}", more)
    write_files(folder, name, config, {"iterative": ITERATIVE, "countdown": DECOUPLED}.get(name, MODEL))


@pytest.fixture(scope="module")
def server(work):
    for name, setting in SEQUENCES.items():
        write(work / "models", name, *setting)
    with ServerProcess(work / "models", work=work) as running:
        yield running


def row(seen):
    return seen["rows"][seen["place"]]


def test_the_model_learns_the_position_of_a_request_in_its_sequence(server):
    seen = [row(Ask(server, "direct", 7, flags, text="hi").seen) for flags in ("start", "", "end")]

    assert [each["flags"] for each in seen] == [1, 0, 2]
    assert [each["id"] for each in seen] == [7, 7, 7]
    assert [each["tensors"]["START"] for each in seen] == [["float32", [1, 1], [f"{n}.0"]] for n in (1, 0, 0)]
    assert [each["tensors"]["END"] for each in seen] == [["int32", [1, 1], [n]] for n in "001"]
    assert {tuple(each["tensors"]["READY"][2]) for each in seen} == {("True",)}
    assert seen[0]["tensors"]["ID"] == ["uint64", [1, 1], ["7"]]
    assert seen[0]["tensors"]["TEXT"] == ["object", [1, 1], ["hi"]]
    assert Ask(server, "direct", 7).refusal[0] == 400


def test_a_sequence_keeps_its_row_and_rows_without_a_request_hold_zeros(server):
    for sequence in (1, 2, 3):
        assert len(Ask(server, "direct", sequence, "start", text="x").seen["rows"]) == sequence
    seen = Ask(server, "direct", 3, "end", text="x").seen

    assert [each["id"] for each in seen["rows"]] == [0, 0, 3]
    assert seen["rows"][0]["tensors"] == {
        "IN": ["float32", [1, 1], ["0.0"]],
        "TEXT": ["object", [1, 1], [""]],
        "START": ["float32", [1, 1], ["0.0"]],
        "END": ["int32", [1, 1], ["0"]],
        "READY": ["bool", [1, 1], ["False"]],
        "ID": ["uint64", [1, 1], ["0"]],
    }
    for sequence in (1, 2):
        Ask(server, "direct", sequence, "end").finish()


def test_a_sequence_may_have_a_name_and_a_model_no_batch_dimension(server):
    seen = [row(Ask(server, "named", "abc", flags).seen) for flags in ("start", "end")]

    assert [each["id"] for each in seen] == ["abc", "abc"]
    assert seen[0]["tensors"]["ID"] == ["object", [1], ["abc"]]
    assert seen[0]["tensors"]["START"] == ["float32", [1], ["1.0"]]
    assert Ask(server, "named", 3, "start").refusal == (
        400,
        "sequence batching control 'ID' data-type is 'UINT64', but model 'named' expects 'BYTES'",
    )


def test_a_sequence_is_lost_with_its_instance_and_may_begin_again(server):
    pid = row(Ask(server, "steady", 1, "start").seen)["pid"]
    os.kill(pid, signal.SIGKILL)
    server.wait_log("'steady_0_0' is restarted")

    status, error = Ask(server, "steady", 1).refusal
    assert status == 503
    assert "sequence 1 of model 'steady' was lost: the instance that held it ended" in error
    assert row(Ask(server, "steady", 1, "start end").seen)["pid"] != pid


def test_a_model_may_want_a_request_again(server):
    assert Ask(server, "iterative", value=5).text == "[1, 0, 0, 0, 0]"
    assert Ask(server, "iterative", 12, "start end", value=3).text == "[3, 0, 0]"


def test_a_decoupled_model_may_want_requests_again_and_answer_each_time(server):
    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in (1, 3, 4):
            tensor = input_of(tritonclient.grpc, "IN", np.full((1, 1), number, np.float32))
            client.async_stream_infer("countdown", [tensor], request_id=str(number))
        seen = {"1": [], "3": [], "4": []}
        for _ in range(8):
            result, error = answers.get(timeout=30)
            assert error is None
            seen[result.get_response().id].append(result.as_numpy("OUT").item().decode())

    assert seen == {"1": ["0"], "3": ["2", "1", "0"], "4": ["3", "2", "1", "0"]}
    assert Ask(server, "iterative", value=1).text == "[1]"


def test_sequences_may_end_while_the_server_exits_and_none_begins(tmp_path):
    write(tmp_path / "models", "plain", "direct { }", 2, 1)
    write(tmp_path / "models", "other", "direct { }", 1, 1)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        Ask(server, "plain", 1, "start").finish()
        os.kill(server.pid, signal.SIGTERM)
        server.wait_log("Waiting for in-flight requests to complete.")
        Ask(server, "plain", 1).finish()
        stopping = "Server is stopping, scheduler for model has stopped accepting new inference requests"
        assert Ask(server, "plain", 2, "start").refusal == (503, stopping)
        assert Ask(server, "other", 2, "start").refusal == (503, f"[request id: <id_unknown>] {stopping}")
        health = server.get("/v2/health/ready")
        assert (health.status, health.error) == (503, "Server exiting")
        assert row(Ask(server, "plain", 1, "end").seen)["flags"] == 2
        assert server.wait_exit() == 0


def test_an_exit_waits_for_sequences_no_longer_than_it_may(tmp_path):
    write(tmp_path / "models", "plain", "direct { }", 2, 1)
    with ServerProcess(tmp_path / "models", "--exit-timeout-secs=1", work=tmp_path) as server:
        Ask(server, "plain", 1, "start").finish()
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_exit() == 0
