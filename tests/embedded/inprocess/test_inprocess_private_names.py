"""Private names of the package that NVIDIA's OpenAI frontend, its tutorials and other programs use."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys

import numpy as np
import pytest

import naiad as tritonserver

NUMBERS = np.array([1.5, -2.0], np.float32)


def test_private_modules_have_the_classes_of_the_api() -> None:
    """`tritonserver._api._response.InferenceResponse` is how the OpenAI frontend names the class."""
    api, bindings = tritonserver._api, tritonserver._c
    assert api._response.InferenceResponse is tritonserver.InferenceResponse
    for module in (api._model, api._request, api._response, api._server, api._tensor, api._memorybuffer, api._dlpack):
        for name in module.__all__:
            if hasattr(tritonserver, name):
                assert getattr(module, name) is getattr(tritonserver, name)
    assert bindings.triton_bindings.TRITONSERVER_DataType is bindings.TRITONSERVER_DataType is tritonserver.DataType
    assert bindings.InvalidArgumentError is tritonserver.InvalidArgumentError
    assert not hasattr(bindings, "TRITONSERVER_Server")


def test_private_modules_can_be_imported() -> None:
    for name in ("_api._response", "_api._datautils", "_api._logging", "_c", "_c.triton_bindings"):
        assert inspect.ismodule(importlib.import_module(f"naiad.{name}"))


@pytest.mark.server
def test_private_modules_are_imported_once_they_are_named() -> None:
    code = "import naiad, sys; assert 'naiad._api' not in sys.modules; naiad._c; print(naiad._api._tensor.Tensor)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "<class 'naiad_embedded.inprocess.tensor.Tensor'>\n"


def test_functions_of_the_bindings_name_and_measure_datatypes() -> None:
    from naiad_embedded._c import triton_bindings as bindings

    for datatype in tritonserver.DataType:
        name = bindings.TRITONSERVER_DataTypeString(datatype)
        assert bindings.TRITONSERVER_StringToDataType(name) is datatype
    assert bindings.TRITONSERVER_DataTypeString(tritonserver.DataType.INVALID) == "<invalid>"
    assert bindings.TRITONSERVER_StringToDataType("FP8") is tritonserver.DataType.INVALID
    assert bindings.TRITONSERVER_DataTypeByteSize(tritonserver.DataType.FP64) == 8
    assert bindings.TRITONSERVER_DataTypeByteSize(tritonserver.DataType.BYTES) == 0
    assert bindings.TRITONSERVER_MemoryTypeString(tritonserver.MemoryType.CPU_PINNED) == "CPU_PINNED"
    assert bindings.TRITONSERVER_InstanceGroupKindString(tritonserver.InstanceGroupKind.GPU) == "GPU"
    assert bindings.api_version()[0] == 1


def test_tables_of_datatypes_refuse_what_they_do_not_have() -> None:
    tables = tritonserver._api._datautils
    assert tables.TRITON_TO_NUMPY_DTYPE[tritonserver.DataType.FP16] is np.float16
    assert tables.TRITON_TO_NUMPY_DTYPE[tritonserver.DataType.BYTES] is np.object_
    assert tables.NUMPY_TO_TRITON_DTYPE[np.str_] is tritonserver.DataType.BYTES
    assert tables.NUMPY_TO_TRITON_DTYPE[bool] is tritonserver.DataType.BOOL
    assert tables.STRING_TO_TRITON_MEMORY_TYPE["GPU"] is tritonserver.MemoryType.GPU
    with pytest.raises(
        tritonserver.InvalidArgumentError, match=r"Unsupported Memory Type String. Can't convert TAPE to Triton server"
    ):
        tables.STRING_TO_TRITON_MEMORY_TYPE["TAPE"]


def test_a_response_and_its_model_can_be_written_as_json(shared: tritonserver.Server) -> None:
    """As NVIDIA's tutorial does that sends responses to Kafka."""
    (response,) = shared.model("identity").infer(inputs={"IN": NUMBERS}, request_id="r")
    message = response.__dict__
    message["outputs"] = {name: tensor.to_numpy().tolist() for name, tensor in message["outputs"].items()}
    message["model"] = message["model"].__dict__
    message["model"].pop("_server", None)

    assert json.loads(json.dumps(message)) == {
        "model": {"name": "identity", "version": 1, "state": None, "reason": None},
        "request_id": "r",
        "parameters": {},
        "outputs": {"OUT": [1.5, -2.0]},
        "error": None,
        "classification_label": None,
        "final": True,
    }
