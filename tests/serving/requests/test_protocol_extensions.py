"""A real server with the protocol's extensions switched on: regions, classes, traces, log settings, restrictions."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from support.model_files import write_files
from support.server import ServerProcess

MODEL = """
def respond(self, request):
    data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    said = np.full((len(data), 1), request.parameters().encode(), dtype=object)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data * 2), pb_utils.Tensor("PARAMETERS", said)])
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
def served(work):
    write_files(work / "models", "labelled", CONFIG, MODEL)
    (work / "models" / "labelled" / "labels.txt").write_text("cat\ndog\nbird\n")
    flags = [
        "--allow-client-shm=true",
        f"--trace-config=triton,file={work / 'traces'}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--trace-config=triton,log-frequency=1",
        "--http-restricted-api=statistics:key=value",
        "--grpc-restricted-protocol=statistics:key=value",
        "--http-header-forward-pattern=^x-",
        "--grpc-header-forward-pattern=^x-",
    ]
    with ServerProcess(work / "models", *flags, work=work) as server:
        yield server, work


@pytest.fixture(params=list(APIS))
def client(request, served):
    server, _ = served
    address = server.grpc_url if request.param == "grpc" else f"127.0.0.1:{server.http_port}"
    with APIS[request.param].InferenceServerClient(address) as made:
        yield made


@pytest.fixture
def api(client):
    return tritonclient.http if isinstance(client, tritonclient.http.InferenceServerClient) else tritonclient.grpc


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
