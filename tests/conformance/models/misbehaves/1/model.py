"""Does the one thing wrong that its input names."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        mode = pb_utils.get_input_tensor_by_name(requests[0], "MODE").as_numpy()[0].decode()
        kind, _, detail = mode.partition(":")
        return getattr(self, kind)(requests, detail)

    def fine(self, requests, detail):
        return [self._response(np.zeros(1, dtype=np.float32)) for _ in requests]

    def raise_value_error(self, requests, detail):
        raise ValueError(detail)

    def raise_model_exception(self, requests, detail):
        raise pb_utils.TritonModelException(detail)

    def error_with_code(self, requests, detail):
        error = pb_utils.TritonError("the model says " + detail, getattr(pb_utils.TritonError, detail))
        return [pb_utils.InferenceResponse(error=error) for _ in requests]

    def error_without_code(self, requests, detail):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no code given")) for _ in requests]

    def answer_with_a_tuple(self, requests, detail):
        return tuple(self.fine(requests, detail))

    def answer_too_often(self, requests, detail):
        return self.fine(requests, detail) * 2

    def answer_with_text(self, requests, detail):
        return ["response" for _ in requests]

    def answer_another_datatype(self, requests, detail):
        return [self._response(np.zeros(1, dtype=np.float64)) for _ in requests]

    def answer_another_shape(self, requests, detail):
        return [self._response(np.zeros((2, 3), dtype=np.float32)) for _ in requests]

    def answer_an_unknown_output(self, requests, detail):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.zeros(1, dtype=np.float32))])]

    def answer_no_output(self, requests, detail):
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def _response(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
