"""Adds INPUT1 to INPUT0 where it was given."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        total = sum(tensor.as_numpy() for tensor in request.inputs())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)])
