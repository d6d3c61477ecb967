"""Calls the three models one after the other. It uses no framework: their tensors only pass through it."""

import numpy as np
import triton_python_backend_utils as pb_utils

STEPS = ("normalise", "squash", "weigh")


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        places = []
        for model in STEPS:
            answer = pb_utils.InferenceRequest(
                model_name=model,
                requested_output_names=["OUT", "CAME_FROM"],
                inputs=[pb_utils.Tensor.from_dlpack("IN", tensor)],
                preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
            ).exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            tensor = pb_utils.get_output_tensor_by_name(answer, "OUT")
            places.append(pb_utils.get_output_tensor_by_name(answer, "CAME_FROM").as_numpy()[0])
        came_from = pb_utils.Tensor("CAME_FROM", np.array(places, dtype=object))
        return pb_utils.InferenceResponse([tensor, came_from])
