"""Sends the requested number of numbered responses within `execute`."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, elements, tag = map(int, pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[:3])
            sender = request.get_response_sender()
            for number in range(count):
                if sender.is_cancelled():
                    break
                values = np.full(elements, tag, np.int64)
                values[0] = number
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
