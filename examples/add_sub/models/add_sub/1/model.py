"""Sum and difference of two tensors: the smallest complete model."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One object of this class serves one instance of the model."""

    def initialize(self, args):
        """Called once, before the first request; optional. Load weights here."""
        # `args` contains the configuration, so its values need not be repeated here.
        config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "SUM")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])

    def execute(self, requests):
        """Called with one or more requests; returns one response for each, in the same order."""
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "LEFT").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "RIGHT").as_numpy()
            outputs = [
                pb_utils.Tensor("SUM", (left + right).astype(self.dtype)),
                pb_utils.Tensor("DIFFERENCE", (left - right).astype(self.dtype)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

    def finalize(self):
        """Called once, when the model is unloaded; optional."""
        print("add_sub is done")
