import logging
import types

import numpy as np
import triton_python_backend_utils as pb_utils
import wire

from . import types as own_types


class TritonPythonModel:
    """Files beside it are called as modules of Python and of the stub; each still gets its own."""

    def execute(self, requests):
        values = [
            hasattr(types, "SimpleNamespace"),
            hasattr(logging, "getLogger"),
            wire.MARK == "the model's own wire",
            own_types.MARK == "the model's own types",
        ]
        out = pb_utils.Tensor("OUT", np.array(values, np.float32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
