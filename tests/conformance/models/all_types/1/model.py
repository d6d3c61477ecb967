"""Every datatype at once; each input is optional and comes back under its own name."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensors = [pb_utils.Tensor("OUT_" + tensor.name()[3:], tensor.as_numpy()) for tensor in request.inputs()]
        return pb_utils.InferenceResponse(tensors)
