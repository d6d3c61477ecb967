"""Answers with twice its input, computed and left in GPU memory by the framework of its configuration."""

import json
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))

import probes


class TritonPythonModel:
    def initialize(self, args):
        self.framework = json.loads(args["model_config"])["parameters"]["framework"]["string_value"]

    def execute(self, requests):
        responses = []
        for request in requests:
            parameters = json.loads(request.parameters() or "{}")
            given = pb_utils.get_input_tensor_by_name(request, "IN")
            doubled = probes.doubled(self.framework, given, parameters.get("form", "object"))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", doubled)]))
        return responses
