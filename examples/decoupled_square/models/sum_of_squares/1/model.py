"""Calls the decoupled model and sums up its responses: one request, one response."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An ordinary model that calls a decoupled one."""

    def execute(self, requests):
        """Compute one response for each request."""
        return [self.sum_up(request) for request in requests]

    def sum_up(self, request):
        """Read the responses as they arrive."""
        call = pb_utils.InferenceRequest(
            model_name="squares",
            requested_output_names=["SQUARE"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "COUNT")],
        )
        total = 0
        for response in call.exec(decoupled=True):
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            # The final flag arrives as a separate response without outputs.
            if response.output_tensors():
                total += pb_utils.get_output_tensor_by_name(response, "SQUARE").as_numpy().item()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([total], dtype=np.int32))])
