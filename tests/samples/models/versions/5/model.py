import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with the version it is."""

    def initialize(self, args):
        self.version = float(args["model_version"])

    def execute(self, requests):
        out = pb_utils.Tensor("OUT", np.array([self.version], np.float32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
