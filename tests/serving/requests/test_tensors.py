"""Tensors of every datatype and of odd sizes and layouts, through a real guest and a real client."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving.repositories import repository
from support.server import ServerProcess
from tritonclient.utils import np_to_triton_dtype

NUMPY = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")


@pytest.fixture(scope="module")
def server(work):
    with ServerProcess(
        repository(work / "models", ["every_datatype", "memory_layouts", "identity"]), work=work
    ) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def api(server, request):
    """Client, and the module with its classes."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    url = server.http_url if request.param == "http" else server.grpc_url
    client = module.InferenceServerClient(url)
    yield client, module
    client.close()


def back(api, name: str, datatype: str, array: np.ndarray) -> np.ndarray:
    """What the model gives back for one input."""
    client, module = api
    tensor = module.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return client.infer("every_datatype", [tensor]).as_numpy(f"OUT_{name}")


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (2, 0), (300, 700)], ids=str)
def test_numbers_come_back_as_they_were(api, dtype, shape):
    array = (np.arange(np.prod(shape)) % 2 if dtype == "?" else np.arange(np.prod(shape)) * 7 % 120).astype(dtype)
    array = array.reshape(shape)
    name = np_to_triton_dtype(array.dtype)
    returned = back(api, name, name, array)
    assert (returned.dtype, returned.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(returned, array)


@pytest.mark.parametrize(
    "elements",
    [
        [[b""]],
        [[b"", b"\0", b"\xff\xfe", "\u00e4\U0001f600".encode()]],
        [[b"x" * (10 << 20)]],
        [[b"a" * n for n in range(2000)]],
    ],
    ids=["empty", "odd bytes", "10 MiB", "many"],
)
def test_strings_of_any_length_come_back_as_they_were(api, elements):
    array = np.array(elements, np.object_)
    assert back(api, "STRING", "BYTES", array).tolist() == elements


def test_bf16_comes_back_bit_by_bit(server):
    """As bytes over HTTP: numpy has no such type, and clients differ in what they take for it."""
    bits = bytes(range(60))
    tensor = {"name": "BF16", "datatype": "BF16", "shape": [2, 15], "parameters": {"binary_data_size": len(bits)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    reply = server.post("/v2/models/every_datatype/infer", head + bits, headers)
    assert reply.status == 200, reply.body
    size = int(reply.headers["inference-header-content-length"])
    [output] = json.loads(reply.body[:size])["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("OUT_BF16", "BF16", [2, 15])
    assert reply.body[size:] == bits


@pytest.mark.parametrize("size", [8191, 8192, 8193, 16_384, 1_000_003])
def test_outputs_around_the_limit_between_copy_and_loan_are_whole(api, size):
    """Small outputs are copied out of the guest's memory, large ones written from it."""
    client, module = api
    array = np.arange(size, dtype=np.float32)
    tensor = module.InferInput("IN", [size], "FP32")
    for turn in range(3):
        tensor.set_data_from_numpy(array + turn)
        np.testing.assert_array_equal(client.infer("identity", [tensor]).as_numpy("OUT"), array + turn)
