"""Samples that instances execute before they serve, on real servers; and instances that only stand by."""

from __future__ import annotations

import json
import os
import signal
import struct

import pytest
from support.model_files import python_config, write_files
from support.server import ServerProcess

MODEL = """
'''OUT: all calls so far, their requests and tensors, and the process.'''

def initialize(self, args):
    self.calls = []
    self.name = args["model_instance_name"]

def execute(self, requests):
    self.calls.append([
        {t.name(): [list(t.shape()), t.as_numpy().astype(str).ravel().tolist()] for t in request.inputs()}
        for request in requests
    ])
    if any(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy().ravel()[0] == -1 for r in requests):
        raise RuntimeError("cold")
    text = json.dumps({"calls": self.calls, "pid": os.getpid(), "instance": self.name})
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[text]], dtype=object))]) for _ in requests
    ]
"""
TEXT = 'inputs { key: "TEXT" value { data_type: TYPE_STRING dims: 1 zero_data: true } }'


def sample(name, data, *, kind="TYPE_FP32", dims="2", rest=TEXT, size=1, count=0):
    return (
        f'model_warmup {{ name: "{name}" batch_size: {size} count: {count} '
        f'inputs {{ key: "IN" value {{ data_type: {kind} dims: {dims} {data} }} }} {rest} }}'
    )


def write(folder, name, config):
    if "instance_group" not in config:
        config += " instance_group { kind: KIND_CPU }"
    tensors = python_config("IN FP32 -1,TEXT STRING 1", "OUT STRING 1", f"max_batch_size: 4 {config}")
    model = write_files(folder, name, tensors, MODEL).parent
    (model / "warmup").mkdir()
    (model / "warmup" / "raw").write_bytes(struct.pack("<2f", 3, 4))
    (model / "warmup" / "short").write_bytes(b"abc")
    (model / "warmup" / "cold").write_bytes(struct.pack("<2f", -1, 0))


BROKEN = {
    "missing": (
        sample("m", "zero_data: true", rest=""),
        "expected 2 inputs but got 1 inputs for model 'missing'. Got input(s) ['IN'], but missing required input(s) ['TEXT']",
    ),
    "unknown": (
        sample("m", "zero_data: true").replace('key: "IN"', 'key: "INPUT"'),
        "The warmup sample 'm' has 'INPUT', which the model does not have: its inputs are IN, TEXT",
    ),
    "wrong": (
        sample("w", "zero_data: true", kind="TYPE_INT32"),
        "[request id: <id_unknown>] inference input 'IN' data-type is 'INT32', but model 'wrong' expects 'FP32'",
    ),
    "vary": (
        sample("v", "zero_data: true", dims="-1"),
        "warmup setting expects all variable-size dimensions are specified for input 'IN'",
    ),
    "unset": (
        sample("u", ""),
        "[request id: <id_unknown>] warmup setting expects input 'IN' to have input_data_type set",
    ),
    "short": (
        sample("s", 'input_data_file: "short"'),
        "[request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from short has 3 bytes",
    ),
    "many": (
        sample("b", "zero_data: true", size=5),
        "cannot use warmup sample 'b' of model 'many': its batch_size 5 exceeds the largest batch of the model, 4",
    ),
    "raises": (
        sample("r", 'input_data_file: "cold"'),
        "failed to run warmup sample 'r': Failed to process the request(s) for model 'raises_0_0', message: RuntimeError: cold",
    ),
    "absent": (sample("f", 'input_data_file: "none"'), "failed to open text file for read "),
    "outside": (
        sample("f", 'input_data_file: "../../warm/warmup/raw"'),
        "cannot read input_data_file of warmup input 'IN': ",
    ),
    "absolute": (sample("f", 'input_data_file: "/etc/hostname"'), "cannot read input_data_file of warmup input 'IN': "),
}


@pytest.fixture(scope="module")
def server(work):
    folder = work / "models"
    for name, (config, _) in BROKEN.items():
        write(folder, name, config)
    twice = sample(
        "twice",
        "zero_data: true",
        rest=TEXT + ' inputs { key: "EXTRA" value { data_type: TYPE_INT32 dims: 3 zero_data: true } }',
        size=2,
        count=2,
    )
    write(folder, "warm", twice + sample("file", 'input_data_file: "raw"') + sample("none", "zero_data: true", size=0))
    write(folder, "random", sample("r", "random_data: true", rest=TEXT.replace("zero", "random")))
    group = "instance_group { kind: KIND_CPU name: "
    write(folder, "idle", sample("i", "zero_data: true") + f'{group}"a" }} {group}"b" count: 2 passive: true }}')
    options = ("--exit-on-error=false", "--strict-readiness=false", "--log-verbose=1")
    with ServerProcess(folder, *options, work=work) as running:
        yield running


def ask(server, model):
    tensors = [
        {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]},
        {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]},
    ]
    reply = server.post(f"/v2/models/{model}/infer", {"inputs": tensors})
    assert reply.status == 200, reply.body
    return json.loads(reply.json()["outputs"][0]["data"][0])


def test_samples_are_executed_before_the_model_serves_and_are_not_counted(server):
    zeros = {"IN": [[1, 2], ["0.0", "0.0"]], "TEXT": [[1, 1], [""]]}
    extra = {**zeros, "EXTRA": [[1, 3], ["0", "0", "0"]]}

    first = ask(server, "warm")["calls"]
    assert first[:3] == [[extra, extra], [extra, extra], [{**zeros, "IN": [[1, 2], ["3.0", "4.0"]]}]]
    assert len(first) == 4
    statistics = server.get("/v2/models/warm/stats").json()["model_stats"][0]
    assert (statistics["inference_count"], statistics["execution_count"]) == (1, 1)


def test_the_log_has_a_line_for_each_run_of_a_sample(server):
    runs = [
        line.split("model 'warm'")[1].rstrip('"') for line in server.log.splitlines() if "model 'warm' inst" in line
    ]
    assert runs[:3] == [
        " instance warm_0_0 is running warmup sample 'twice' for iteration 1",
        " instance warm_0_0 is running warmup sample 'twice' for iteration 2",
        " instance warm_0_0 is running warmup sample 'file' for iteration 1",
    ]


def test_random_text_is_empty(server):
    [tensors] = ask(server, "random")["calls"][0]

    assert tensors["IN"][0] == [1, 2]
    assert tensors["TEXT"] == [[1, 1], [""]]


@pytest.mark.parametrize("model", BROKEN)
def test_a_sample_that_does_not_work_fails_the_load_and_says_why(server, model):
    index = {entry["name"]: entry for entry in server.post("/v2/repository/index").json()}

    assert index[model]["state"] == "UNAVAILABLE"
    assert BROKEN[model][1] in index[model]["reason"]


def test_a_guest_that_takes_the_place_of_a_dead_one_is_warmed_up_too(server):
    pid = ask(server, "random")["pid"]
    os.kill(pid, signal.SIGKILL)
    server.wait_log("'random_0_0' is restarted")
    server.wait_for(lambda: server.get("/v2/models/random/ready").status == 200, "the model to be ready again")

    again = ask(server, "random")
    assert again["pid"] != pid
    assert len(again["calls"]) == 2


def test_passive_instances_are_started_and_get_no_requests(server):
    assert {ask(server, "idle")["instance"] for _ in range(6)} == {"a_0"}
    assert sum("'b_" in line and "is ready: pid" in line for line in server.log.splitlines()) == 2
