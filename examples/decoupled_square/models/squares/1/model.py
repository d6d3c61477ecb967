"""The squares of 1, 2, ... COUNT, one response each; several requests are processed concurrently."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends its responses from threads, so that `execute` returns at once and can receive the next request."""

    def initialize(self, args):
        """Create the list of threads, for which `finalize` waits."""
        self.threads = []

    def execute(self, requests):
        """Start a thread for each request and return; the threads send the responses."""
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for request in requests:
            # Inputs are views of the request's memory: read what the thread needs before returning.
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            thread = threading.Thread(target=self.send_squares, args=(request.get_response_sender(), count))
            thread.start()
            self.threads.append(thread)

    def send_squares(self, sender, count):
        """Send the responses of one request."""
        for number in range(1, count + 1):
            if sender.is_cancelled():
                break  # the client has disconnected; the final flag must still be sent
            square = np.array([number**2], dtype=np.int32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SQUARE", square)]))
            time.sleep(0.02)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        """Wait for the threads, because they use the model."""
        for thread in self.threads:
            thread.join()
