"""Returns the softmax of a vector, computed with PyTorch, and the versions that it runs with."""

import platform

import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Tensors pass between the server and PyTorch by DLPack, without a copy."""

    def execute(self, requests):
        """Respond to each request."""
        runs_in = np.array([f"Python {platform.python_version()}, PyTorch {torch.__version__}"], dtype=object)
        responses = []
        for request in requests:
            values = torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, "IN"))
            output = pb_utils.Tensor.from_dlpack("OUT", torch.softmax(values, 0))
            responses.append(pb_utils.InferenceResponse([output, pb_utils.Tensor("RUNS_IN", runs_in)]))
        return responses
