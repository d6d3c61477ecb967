import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with its process id, having taken as many seconds as the first value says."""

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]))
            out = pb_utils.Tensor("OUT", np.array([os.getpid()], np.float32))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
