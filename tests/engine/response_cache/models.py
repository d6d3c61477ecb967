"""A model that counts its executions, and what a server says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.server import Reply, ServerProcess

COUNTS = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.calls = 0

    def execute(self, requests):
        """Echo IN; N is the number of the call. -1 is answered with an error, -2 raises, -3 ends the process."""
        self.calls += 1
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if values.dtype != np.object_ and values.size:
                if values.min() == -1:
                    error = pb_utils.TritonError("minus one")
                    responses.append(pb_utils.InferenceResponse([], error=error))
                    continue
                if values.min() == -2:
                    raise ValueError("minus two")
                if values.min() == -3:
                    import os

                    os._exit(3)
            count = np.full((*values.shape[:1], 1), self.calls, np.int32)
            outputs = [pb_utils.Tensor("OUT", values), pb_utils.Tensor("N", count)]
            asked = set(request.requested_output_names())
            outputs = [tensor for tensor in outputs if tensor.name() in asked]
            responses.append(pb_utils.InferenceResponse(outputs, parameters={"call": self.calls}))
        return responses
'''

CACHED = "response_cache { enable: true }\n"

CONFIG = """
backend: "python"
max_batch_size: 4
input [{{ name: "IN" data_type: {datatype} dims: [-1] }}]
output [{{ name: "OUT" data_type: {datatype} dims: [-1] }}, {{ name: "N" data_type: TYPE_INT32 dims: [1] }}]
"""

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [{{ name: "IN" data_type: TYPE_FP32 dims: [-1] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }}, {{ name: "N" data_type: TYPE_INT32 dims: [1] }}]
ensemble_scheduling {{
  step [{{
    model_name: "{step}"
    model_version: -1
    input_map {{ key: "IN" value: "IN" }}
    output_map {{ key: "OUT" value: "OUT" }}
    output_map {{ key: "N" value: "N" }}
  }}]
}}
"""


def write_counting(
    models: Path, name: str, config: str = CACHED, *, datatype: str = "TYPE_FP32", code: str = COUNTS
) -> Path:
    """A model that counts; *config* is appended to its configuration. Returns its `model.py`."""
    file = models / name / "1" / "model.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    (models / name / "config.pbtxt").write_text(CONFIG.format(datatype=datatype) + config)
    file.write_text(code)
    return file


def write_ensemble(models: Path, name: str, step: str, config: str = CACHED) -> None:
    """An ensemble of one step."""
    (models / name / "1").mkdir(parents=True)
    (models / name / "config.pbtxt").write_text(ENSEMBLE.format(step=step) + config)


def ask(
    server: ServerProcess, model: str, *values: Any, shape: Any = None, datatype: str = "FP32", **more: Any
) -> Reply:
    """Ask a model that counts."""
    tensor = {"name": "IN", "datatype": datatype, "shape": shape or [1, len(values)], "data": list(values)}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor], **more})


def outputs(reply: Reply) -> dict[str, list[Any]]:
    """The outputs of an answer by name."""
    assert reply.status == 200, reply.body
    return {tensor["name"]: tensor["data"] for tensor in reply.json()["outputs"]}


def call(reply: Reply) -> int:
    """Which call of `execute` made this answer."""
    return outputs(reply)["N"][0]


def statistics(server: ServerProcess, model: str) -> dict[str, Any]:
    """The model's statistics."""
    return server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]


def counts(server: ServerProcess, model: str) -> dict[str, int]:
    """The counts among them."""
    found = statistics(server, model)
    return {
        "inferences": found["inference_count"],
        "executions": found["execution_count"],
        **{name: each["count"] for name, each in found["inference_stats"].items()},
    }


def metrics(server: ServerProcess, part: str) -> list[str]:
    """Lines of the metrics page with *part* in them."""
    return [line for line in server.metrics().splitlines() if part in line]


def gauge(server: ServerProcess, name: str) -> float:
    """The value of a metric without labels."""
    (value,) = server.samples(f"{name} ").values()
    return value
