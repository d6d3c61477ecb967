"""Models as classes: how a test gives `naiad.testing` one without a file."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

DECOUPLED_CLASS = {"model_transaction_policy": {"decoupled": True}}
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def number(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([value]))])


class Repeat:
    """Answers a request as often as its input says, from a thread after `execute` has returned."""

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(), request)).start()

    def send(self, sender, request):
        for value in range(int(request.inputs()[0].as_numpy()[0])):
            if sender.is_cancelled():
                break
            sender.send(number(value))
        sender.send(flags=FINAL)
