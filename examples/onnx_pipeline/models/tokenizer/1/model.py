"""Texts to token numbers and a mask; the texts of a batch are padded to the longest one."""

import triton_python_backend_utils as pb_utils
from words import pad


class TritonPythonModel:
    """The first step of `similar`."""

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
            tokens, mask = pad([text.decode() for text in texts])
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("TOKENS", tokens), pb_utils.Tensor("MASK", mask)])
            )
        return responses
