import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._greet(pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()) for request in requests]

    def _greet(self, names):
        greetings = [f"Hello, {name.decode()}" for name in names]
        return pb_utils.InferenceResponse([pb_utils.Tensor("GREETING", np.array(greetings, dtype=object))])
