# /// script
# dependencies = ["python-dateutil", "numpy"]
# ///
"""Reads dates as people write them, with a package that this file names and the server installs."""

import platform

import numpy as np
import triton_python_backend_utils as pb_utils
from dateutil import parser


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        days = [parser.parse(text.decode()).date().isoformat() for text in texts]
        python = np.array([platform.python_version()], dtype=object)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("DAY", np.array(days, dtype=object)), pb_utils.Tensor("PYTHON", python)]
        )
