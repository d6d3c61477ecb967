"""Answers with what it can tell of its request."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        told = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
        }
        outputs = [pb_utils.Tensor(name, np.array([json.dumps(told)], np.object_)) for name in ("OUT", "MORE")]
        return pb_utils.InferenceResponse(outputs)
