"""A model that has nothing but text in and text out, and answers once: even that can be served."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
        if text == "parameters":
            text = request.parameters()
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text.upper()], object))])
