"""Features to a score for each kind of flower, with a small linear model."""

import numpy as np
import triton_python_backend_utils as pb_utils

WEIGHTS = np.array(
    [[-1.0, 1.2, -1.8, -1.7], [0.6, -0.7, -0.1, -0.8], [0.4, -0.5, 1.9, 2.5]],
    np.float32,
)
BIASES = np.array([-0.2, 1.9, -1.7], np.float32)


class TritonPythonModel:
    """The second step."""

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            features = pb_utils.get_input_tensor_by_name(request, "FEATURES").as_numpy()
            scores = pb_utils.Tensor("SCORES", features @ WEIGHTS.T + BIASES)
            responses.append(pb_utils.InferenceResponse([scores]))
        return responses
