"""Returns the name, kind and device of the instance that executes the request."""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Every instance has one object of this class, in its own process."""

    def initialize(self, args):
        """Choose the device by kind and id: for KIND_GPU it would be f"cuda:{args['model_instance_device_id']}"."""
        self.description = [
            pb_utils.Tensor(output, np.array([args[key]], dtype=object))
            for output, key in (
                ("INSTANCE", "model_instance_name"),
                ("KIND", "model_instance_kind"),
                ("DEVICE", "model_instance_device_id"),
            )
        ]

    def execute(self, requests):
        """Sleep for as long as each request says."""
        responses = []
        for request in requests:
            time.sleep(pb_utils.get_input_tensor_by_name(request, "PAUSE_MS").as_numpy()[0] / 1000)
            process = pb_utils.Tensor("PROCESS", np.array([os.getpid()], dtype=np.int64))
            responses.append(pb_utils.InferenceResponse([*self.description, process]))
        return responses
