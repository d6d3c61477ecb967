"""The product of two tensors, after a second."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Simulates a model with a long computation."""

    def execute(self, requests):
        """Compute one response for each request."""
        time.sleep(1)
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "LEFT").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "RIGHT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", left * right)]))
        return responses
