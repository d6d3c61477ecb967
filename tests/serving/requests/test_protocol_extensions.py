"""A real server with the protocol's extensions switched on: regions, classes, traces, log settings, restrictions."""

from __future__ import annotations

import json
import secrets

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from support.server import ServerProcess
from support.waiting import until

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            said = np.full((len(data), 1), request.parameters().encode(), dtype=object)
            outputs = [pb_utils.Tensor("OUT", data * 2), pb_utils.Tensor("PARAMETERS", said)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input [{ name: "IN" data_type: TYPE_FP32 dims: [-1] }]
output [
  { name: "OUT" data_type: TYPE_FP32 dims: [-1] label_filename: "labels.txt" },
  { name: "PARAMETERS" data_type: TYPE_STRING dims: [1] }
]
"""
APIS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = tmp_path_factory.mktemp("extensions")
    directory = place / "models" / "labelled"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(MODEL)
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / "labels.txt").write_text("cat\ndog\nbird\n")
    flags = [
        "--allow-client-shm=true",
        f"--trace-config=triton,file={place / 'traces'}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--trace-config=triton,log-frequency=1",
        "--http-restricted-api=statistics:key=value",
        "--grpc-restricted-protocol=statistics:key=value",
        "--http-header-forward-pattern=^x-",
        "--grpc-header-forward-pattern=^x-",
    ]
    with ServerProcess(place / "models", *flags, work=place) as server:
        yield server, place


@pytest.fixture(params=list(APIS))
def client(request, served):
    server, _ = served
    address = server.grpc_url if request.param == "grpc" else f"127.0.0.1:{server.http_port}"
    with APIS[request.param].InferenceServerClient(address) as made:
        yield made


@pytest.fixture
def api(client):
    return tritonclient.http if isinstance(client, tritonclient.http.InferenceServerClient) else tritonclient.grpc


def tensor_in(api, values):
    data = np.array(values, np.float32)
    tensor = api.InferInput("IN", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    return tensor


@pytest.mark.parametrize("count", [4, 1 << 20])
def test_a_model_reads_and_writes_regions_of_its_client(client, api, count):
    key, size = f"/naiad_test_{secrets.token_hex(6)}", 4 * count
    handle = shm.create_shared_memory_region("r", key, 2 * size)
    try:
        data = np.arange(count, dtype=np.float32)[None]
        shm.set_shared_memory_region(handle, [data])
        client.register_system_shared_memory("r", key, 2 * size)
        tensor = api.InferInput("IN", [1, count], "FP32")
        tensor.set_shared_memory("r", size)
        output = api.InferRequestedOutput("OUT")
        output.set_shared_memory("r", size, size)
        client.infer("labelled", [tensor], outputs=[output])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [1, count], offset=size), data * 2)
        client.unregister_system_shared_memory("r")
    finally:
        shm.destroy_shared_memory_region(handle)


def test_classes_have_the_labels_of_the_models_file(client, api):
    tensor = tensor_in(api, [[1, 3, 2, -5], [0, 0, 0, 1]])
    result = client.infer("labelled", [tensor], outputs=[api.InferRequestedOutput("OUT", class_count=2)])
    assert result.as_numpy("OUT").tolist() == [
        [b"6.000000:1:dog", b"4.000000:2:bird"],
        [b"2.000000:3", b"0.000000:0:cat"],
    ]


def test_a_request_leaves_a_trace(served, client, api):
    _, place = served
    client.infer("labelled", [tensor_in(api, [[1]])], request_id="traced")

    def found():
        # Other requests are traced as well, and a file is there a moment after its answer.
        files = sorted(place.glob("traces.*"), key=lambda path: int(path.suffix[1:]), reverse=True)
        traces = [json.loads(text) for text in (path.read_text() for path in files) if text.endswith("]")]
        return next((events for events in traces if events[0].get("request_id") == "traced"), None)

    until(found, "the trace")
    events = found()
    assert events[0]["model_name"] == "labelled"
    times = {event["timestamps"][0]["name"]: event["timestamps"][0]["ns"] for event in events[1:]}
    way = ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
    assert [times[name] for name in way] == sorted(times[name] for name in way)
    assert times["REQUEST_END"] >= times["COMPUTE_END"]


def test_the_log_says_more_when_asked_to(client):
    try:
        client.update_log_settings({"log_format": "ISO8601", "log_verbose_level": 1})
        settings = client.get_log_settings()
        assert "ISO8601" in str(settings)
    finally:
        client.update_log_settings({"log_format": "default", "log_verbose_level": 0})


def test_statistics_need_their_header(client, api):
    name = "key" if api is tritonclient.http else "triton-grpc-protocol-key"
    with pytest.raises(Exception, match=f"restricted, expecting header '{name}'"):
        client.get_inference_statistics()
    assert client.get_inference_statistics(headers={name: "value"})


def test_headers_that_match_reach_the_model(client, api):
    result = client.infer("labelled", [tensor_in(api, [[1]])], headers={"x-who": "me", "y": "no"})
    assert json.loads(result.as_numpy("PARAMETERS")[0, 0]) == {"x-who": "me"}
