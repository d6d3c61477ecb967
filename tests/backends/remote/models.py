"""Repositories of the tests: models that are called, and models of the backend that call them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_ROWS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self._name = json.loads(args["model_config"])["parameters"]["name"]["string_value"]

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        about = json.dumps(
            {"name": self._name, "parameters": json.loads(request.parameters()), "id": request.request_id(),
             "context": json.loads(request.trace().get_context() or "{}"), "rows": len(x),
             "timeout": request.timeout(), "correlation": request.correlation_id(), "flags": request.flags()}
        )
        outputs = [
            pb_utils.Tensor("Y", x * 2),
            pb_utils.Tensor("ECHO", text),
            pb_utils.Tensor("ABOUT", np.array([[about]] * len(x), dtype=object)),
        ]
        return pb_utils.InferenceResponse(outputs, parameters={"answered": True})
"""
_ROWS_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "ECHO" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "ABOUT" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
_COUNT = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self._count, args=(request, request.get_response_sender())).start()

    def _count(self, request, sender):
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        for number in range(abs(count)):
            output = pb_utils.Tensor("NUMBER", np.array([number], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse([output]))
        if count < 0:
            error = pb_utils.TritonError("it counts up to here", pb_utils.TritonError.NOT_FOUND)
            sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_COUNT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_WAIT = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self._folder = os.path.dirname(os.path.dirname(args["model_repository"]))

    def execute(self, requests):
        folder = self._folder
        for request in requests:
            open(os.path.join(folder, "begun"), "a").write("begun\\n")
            while not request.is_cancelled() and not os.path.exists(os.path.join(folder, "go")):
                time.sleep(0.01)
            if request.is_cancelled():
                open(os.path.join(folder, "cancelled"), "a").write("cancelled\\n")
        done = pb_utils.Tensor("DONE", np.array([1], dtype=np.int32))
        return [pb_utils.InferenceResponse([done]) for _ in requests]
"""
_ONE_CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "DONE" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_FAIL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("there is no such row", pb_utils.TritonError.NOT_FOUND)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
_CALL = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self._model = json.loads(args["model_config"])["parameters"]["calls"]["string_value"]

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        called = pb_utils.InferenceRequest(
            model_name=self._model, inputs=request.inputs(), requested_output_names=["DONE"]
        )
        response = called.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse(response.output_tensors())
"""
_BF16 = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(pb_utils.get_input_tensor_by_name(request, "IN")) for request in requests]

    def _respond(self, given):
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", given.to_dlpack())])
"""
_BF16_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_BF16 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_BF16 dims: [ -1 ] }
"""


def parameters(values: Mapping[str, str]) -> str:
    """Parameters as text of `config.pbtxt`."""
    return "".join(
        f"parameters {{ key: {json.dumps(name)} value {{ string_value: {json.dumps(value)} }} }}\n"
        for name, value in values.items()
    )


def add_python(repository: Path, name: str, code: str, config: str) -> None:
    """A model of backend `python`."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(config)


def add_rows(repository: Path, name: str, answers_as: str = "") -> None:
    """A batching model that doubles X, echoes TEXT, and says ABOUT which request it got."""
    add_python(repository, name, _ROWS, _ROWS_CONFIG + parameters({"name": answers_as or name}))


def add_wait(repository: Path, name: str = "wait") -> None:
    """A model that waits for the file `go` beside the repository, or for its client to go; it writes down which."""
    add_python(repository, name, _WAIT, _ONE_CONFIG)


def add_call(repository: Path, name: str, model: str) -> None:
    """A model that calls *model* and returns its response."""
    add_python(repository, name, _CALL, _ONE_CONFIG + parameters({"calls": model}))


def add_targets(repository: Path) -> Path:
    """One model of each kind that the tests call; returns the repository."""
    add_rows(repository, "rows", "stable")
    add_rows(repository, "canary", "canary")
    add_python(repository, "count", _COUNT, _COUNT_CONFIG)
    add_python(repository, "fail", _FAIL, _ONE_CONFIG)
    add_python(repository, "bf16", _BF16, _BF16_CONFIG)
    add_wait(repository)
    return repository


def add_remote(repository: Path, name: str, values: Mapping[str, str], config: str = "") -> None:
    """A model of the backend `remote` with these parameters."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text('backend: "remote"\n' + parameters(values) + config)
