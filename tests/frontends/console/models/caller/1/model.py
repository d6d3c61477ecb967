"""Calls `adder`, and doubles 16-bit floats."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_warn("the caller is about to call")

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(model_name="adder", inputs=[tensor], requested_output_names=["OUT"])
            outputs = [pb_utils.Tensor("OUT", call.exec().output_tensors()[0].as_numpy())]
            half = pb_utils.get_input_tensor_by_name(request, "HALF")
            array = np.zeros(1, np.float16) if half is None else half.as_numpy() * 2
            responses.append(pb_utils.InferenceResponse([*outputs, pb_utils.Tensor("HALF_OUT", array)]))
        return responses
