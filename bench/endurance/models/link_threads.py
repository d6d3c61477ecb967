"""A link of a chain that responds to each request from its own thread; `execute` returns at once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

THREADS = 200


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.next = parameters["next"]["string_value"]
        self.step = int(parameters["step"]["string_value"])
        self.pool = ThreadPoolExecutor(THREADS)
        # Start all threads now: otherwise their number grows with the load, and the test reports a leak.
        barrier = threading.Barrier(THREADS)
        for _ in range(THREADS):
            self.pool.submit(barrier.wait)

    def execute(self, requests):
        for request in requests:
            self.pool.submit(self.answer, request, request.get_response_sender())

    def answer(self, request, sender):
        try:
            response = self.response(request)
        except Exception as error:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error)))
        sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, request):
        call = pb_utils.InferenceRequest(
            model_name=self.next,
            request_id=request.request_id(),
            requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
        )
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        values = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.add(values, self.step))])

    def finalize(self):
        self.pool.shutdown()
