"""The mean of each row. Without a config.pbtxt, the model declares its own inputs and outputs."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Declares its configuration before it is loaded."""

    @staticmethod
    def auto_complete_config(config):
        """Set the fields that config.pbtxt leaves out; these methods raise if it has other values.

        Runs in a separate process, which exits afterwards: `initialize` does not see variables that are set here.
        """
        config.set_max_batch_size(16)
        config.set_dynamic_batching()
        # `dims` does not include the batch dimension; -1 means any size.
        config.add_input({"name": "VALUES", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "MEAN", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def execute(self, requests):
        """Compute one response for each request; rows of different requests may differ in length."""
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
            mean = values.mean(axis=1, keepdims=True, dtype=np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("MEAN", mean)]))
        return responses
