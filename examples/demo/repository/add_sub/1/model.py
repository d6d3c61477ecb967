"""Sum and difference of two tensors, and the Python that computed them."""

import platform

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The smallest model with an answer worth checking."""

    def execute(self, requests):
        """Compute one response for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        python = np.array([platform.python_version()], dtype=object)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUTPUT0", left + right),
                pb_utils.Tensor("OUTPUT1", left - right),
                pb_utils.Tensor("PYTHON", python),
            ]
        )
