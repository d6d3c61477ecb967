"""A link of a chain: calls the next link with `exec` and adds its step to the result."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.next = parameters["next"]["string_value"]
        self.step = int(parameters["step"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if self.next:
                values = self.ask(values, request.request_id())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.add(values, self.step))]))
        return responses

    def ask(self, values, request_id):
        call = pb_utils.InferenceRequest(
            model_name=self.next,
            request_id=request_id,
            requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", values)],
        )
        response = call.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
