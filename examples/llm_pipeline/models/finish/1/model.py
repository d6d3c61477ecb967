"""Hides the digits in generated text: the last step, applied to each part of a stream separately."""

import re

import numpy as np
import triton_python_backend_utils as pb_utils

UNFINISHED = b"None"


class TritonPythonModel:
    """Replaces each digit."""

    def execute(self, requests):
        """Compute one response for each request."""
        return [self.finish(request) for request in requests]

    def finish(self, request):
        """Process one part of the answer."""
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]
        reason = pb_utils.get_input_tensor_by_name(request, "REASON").as_numpy()[0]
        outputs = [
            pb_utils.Tensor("ANSWER", np.array([re.sub(rb"\d", b"#", text)], dtype=object)),
            pb_utils.Tensor("IS_LAST", np.array([reason != UNFINISHED])),
        ]
        return pb_utils.InferenceResponse(outputs)
