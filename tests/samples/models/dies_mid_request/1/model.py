import os
import signal
import sys
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The first value says what happens: negative is the signal to die of, positive the seconds to take."""

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if tensor[0] < 0:
                print("about to die of signal", int(-tensor[0]), file=sys.stderr)
                os.kill(os.getpid(), int(-tensor[0]))
                signal.pause()
            print("works for", tensor[0], "s")
            time.sleep(float(tensor[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]))
        return responses
