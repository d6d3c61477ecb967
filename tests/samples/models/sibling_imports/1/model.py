import beside
import numpy as np
import triton_python_backend_utils as pb_utils
from parts.inner import THREE

from .beside import TWO as TWO_AGAIN


class TritonPythonModel:
    def execute(self, requests):
        out = pb_utils.Tensor("OUT", np.array([beside.TWO, TWO_AGAIN, THREE], np.float32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
