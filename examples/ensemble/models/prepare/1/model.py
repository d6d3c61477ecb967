"""Measurements to features: subtract the mean, divide by the standard deviation."""

import numpy as np
import triton_python_backend_utils as pb_utils

MEANS = np.array([5.84, 3.05, 3.76, 1.20], np.float32)
SPREADS = np.array([0.83, 0.43, 1.76, 0.76], np.float32)


class TritonPythonModel:
    """The first step: computes the features that the model was trained on."""

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            measured = pb_utils.get_input_tensor_by_name(request, "CENTIMETRES").as_numpy()
            features = pb_utils.Tensor("FEATURES", (measured - MEANS) / SPREADS)
            responses.append(pb_utils.InferenceResponse([features]))
        return responses
