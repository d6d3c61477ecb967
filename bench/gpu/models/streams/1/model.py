"""Sends its input three times."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = pb_utils.get_input_tensor_by_name(request, "IN")
            for _ in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", given.to_dlpack())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
