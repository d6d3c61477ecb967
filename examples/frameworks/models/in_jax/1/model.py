"""Returns the softmax of a vector, computed with JAX, and the versions that it runs with."""

import platform

import jax
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """JAX compiles the function once for each shape of its input."""

    def initialize(self, args):
        """Compile for the usual shape, so that the first request does not wait for that."""
        self.softmax = jax.jit(jax.nn.softmax)
        self.softmax(np.zeros(4, np.float32)).block_until_ready()

    def execute(self, requests):
        """Respond to each request."""
        runs_in = np.array([f"Python {platform.python_version()}, JAX {jax.__version__}"], dtype=object)
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            output = np.asarray(self.softmax(values))
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output), pb_utils.Tensor("RUNS_IN", runs_in)])
            )
        return responses
