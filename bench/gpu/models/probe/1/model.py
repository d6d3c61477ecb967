"""Calls a function of `probes` that the request names, and answers with what it returns, as JSON."""

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))

import probes


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = json.loads(pb_utils.get_input_tensor_by_name(request, "CALL").as_numpy()[0])
            try:
                result = {"result": getattr(probes, call["function"])(**call["arguments"])}
            except Exception:
                result = {"error": traceback.format_exc()}
            text = np.array([json.dumps(result).encode()], object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", text)]))
        return responses
