"""Turns a question into a conversation: the first step."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

SYSTEM = "You are a helpful assistant."
MOST_WORDS = 100


class TritonPythonModel:
    """Cleans up the question and adds the instructions for the language model."""

    def execute(self, requests):
        """Compute one response for each request."""
        return [self.prepare(request) for request in requests]

    def prepare(self, request):
        """The inputs of a language model."""
        question = pb_utils.get_input_tensor_by_name(request, "QUESTION").as_numpy()[0].decode()
        tokens = int(pb_utils.get_input_tensor_by_name(request, "MAX_TOKENS").as_numpy()[0])
        words = question.split()[:MOST_WORDS]
        if not words:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the question is empty"))
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": " ".join(words)}]
        sampling = {"temperature": 0, "max_tokens": tokens}
        outputs = [
            pb_utils.Tensor("MESSAGES", np.array([json.dumps(messages).encode()], dtype=object)),
            pb_utils.Tensor("SAMPLING", np.array([json.dumps(sampling).encode()], dtype=object)),
            pb_utils.Tensor("YES", np.array([True])),
        ]
        return pb_utils.InferenceResponse(outputs)
