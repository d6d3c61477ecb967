"""One response for each value of the request."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends its responses instead of returning them."""

    def execute(self, requests):
        """Process the requests one after the other; decoupled_square processes several at a time."""
        for request in requests:
            self.repeat(request)
        # A decoupled model returns nothing.

    def repeat(self, request):
        """Send the values one by one, with a pause after each."""
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        pause = pb_utils.get_input_tensor_by_name(request, "PAUSE_MS").as_numpy()[0] / 1000
        sender = request.get_response_sender()
        for index, value in enumerate(values):
            outputs = [
                pb_utils.Tensor("VALUE", np.array([value], dtype=np.int32)),
                pb_utils.Tensor("INDEX", np.array([index], dtype=np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
            time.sleep(pause)
        # Every request needs the final flag, even without any response; otherwise the client waits forever.
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
