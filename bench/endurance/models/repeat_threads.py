"""Sends the requested number of numbered responses, one thread for each request."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def answer(request, sender):
    count, elements, tag = map(int, pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[:3])
    for number in range(count):
        if sender.is_cancelled():
            break
        values = np.full(elements, tag, np.int64)
        values[0] = number
        # In every other stream, the last response itself carries the final flag.
        is_last = number == count - 1 and tag % 2
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]), flags)
        if is_last:
            return
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=answer, args=(request, request.get_response_sender()), daemon=True).start()
