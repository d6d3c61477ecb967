"""Answers IN[0] times, each with its number; IN[1] says how the end is marked: 0 apart, 1 with the last response."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, with_last = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().astype(int)
            sender = request.get_response_sender()
            for number in range(count):
                output = pb_utils.Tensor("OUT", np.array([number], np.float32))
                is_end = with_last and number == count - 1
                sender.send(pb_utils.InferenceResponse([output]), FINAL if is_end else 0)
                if sender.is_cancelled():
                    break
            if not (with_last and number == count - 1):
                sender.send(flags=FINAL)
