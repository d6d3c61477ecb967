"""Answers with the parameters, id and asked outputs of the request, as the model sees them."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        seen = {
            "parameters": json.loads(request.parameters()),
            "id": request.request_id(),
            "outputs": sorted(request.requested_output_names()),
        }
        text = np.array([json.dumps(seen, sort_keys=True).encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text)])
