import multiprocessing
import subprocess

import numpy as np
import triton_python_backend_utils as pb_utils


def double(value):
    return value * 2


class TritonPythonModel:
    """Answers through a pool of processes, and keeps a program running beside it."""

    def initialize(self, args):
        self.program = subprocess.Popen(["sleep", "600"])
        self.pool = multiprocessing.get_context("fork").Pool(2)

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().tolist()
            doubled = self.pool.map(double, values)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(doubled, np.float32))]))
        return responses

    def finalize(self):
        self.pool.terminate()
        self.program.terminate()
        print("children ended with", self.program.wait())
