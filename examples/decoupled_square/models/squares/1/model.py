"""The squares of 1, 2, ... COUNT, one response each; requests are answered side by side."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers from threads, so that `execute` is free for the next request at once."""

    def initialize(self, args):
        """Keep the threads, to wait for them in the end."""
        self.threads = []

    def execute(self, requests):
        """Start a thread for each request and return; the responses come later."""
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for request in requests:
            # Inputs are views of memory that is the request's: read what the thread needs before returning.
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            thread = threading.Thread(target=self.send_squares, args=(request.get_response_sender(), count))
            thread.start()
            self.threads.append(thread)

    def send_squares(self, sender, count):
        """Send the responses of one request."""
        for number in range(1, count + 1):
            if sender.is_cancelled():
                break  # the client has left; the end is still ours to send
            square = np.array([number**2], dtype=np.int32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SQUARE", square)]))
            time.sleep(0.02)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        """The threads use the model: they end first."""
        for thread in self.threads:
            thread.join()
