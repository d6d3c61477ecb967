"""Returns the softmax of a vector, computed with numpy, and the versions that it runs with."""

import platform

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The environment is an archive, which the server unpacks."""

    def execute(self, requests):
        """Respond to each request."""
        runs_in = np.array([f"Python {platform.python_version()}, numpy {np.__version__}"], dtype=object)
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            powers = np.exp(values - values.max())
            output = (powers / powers.sum()).astype(np.float32)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output), pb_utils.Tensor("RUNS_IN", runs_in)])
            )
        return responses
