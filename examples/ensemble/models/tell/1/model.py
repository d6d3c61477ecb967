"""Scores to a name and its probability."""

import numpy as np
import triton_python_backend_utils as pb_utils

KINDS = np.array([b"setosa", b"versicolor", b"virginica"], dtype=object)


class TritonPythonModel:
    """The last step."""

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            kinds = pb_utils.Tensor("KIND", KINDS[shares.argmax(axis=1)].reshape(-1, 1))
            confidence = pb_utils.Tensor("CONFIDENCE", shares.max(axis=1, keepdims=True))
            responses.append(pb_utils.InferenceResponse([kinds, confidence]))
        return responses
