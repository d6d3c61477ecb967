"""Forwards the responses of a decoupled model, one thread for each request; a cancelled request cancels its call."""

import json
import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.next = json.loads(args["model_config"])["parameters"]["next"]["string_value"]

    def execute(self, requests):
        for request in requests:
            arguments = (request, request.get_response_sender())
            threading.Thread(target=self.answer, args=arguments, daemon=True).start()

    def answer(self, request, sender):
        call = pb_utils.InferenceRequest(
            model_name=self.next,
            requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
        )
        responses = call.exec(decoupled=True)
        for response in responses:
            if sender.is_cancelled():
                responses.cancel()
                break
            if response.has_error():
                sender.send(pb_utils.InferenceResponse(error=response.error()))
            elif response.output_tensors():
                values = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
