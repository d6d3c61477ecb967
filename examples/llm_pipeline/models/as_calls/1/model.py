"""Prepares, generates and finishes by calling three models; forwards the parts as they arrive."""

from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
AT_ONCE = 8


class TritonPythonModel:
    """Uses one thread for each request, so that a long answer does not delay the next one."""

    def initialize(self, args):
        """Create the thread pool."""
        self.threads = ThreadPoolExecutor(AT_ONCE)

    def execute(self, requests):
        """Start the requests in threads and return at once."""
        for request in requests:
            self.threads.submit(self.answer, request, request.get_response_sender())

    def answer(self, request, sender):
        """Process one request, and send its final flag."""
        try:
            self.chain(request, sender)
            sender.send(flags=FINAL)
        except Exception as error:  # noqa: BLE001 - the client must receive every error
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), flags=FINAL)

    def chain(self, request, sender):
        """Run the three steps."""
        given = [pb_utils.get_input_tensor_by_name(request, name) for name in ("QUESTION", "MAX_TOKENS")]
        prepared = checked(call("prepare", given, ["MESSAGES", "SAMPLING", "YES"]).exec())
        wish = [
            renamed(prepared, "MESSAGES", "messages"),
            renamed(prepared, "SAMPLING", "sampling_parameters"),
            renamed(prepared, "YES", "stream"),
            renamed(prepared, "YES", "return_finish_reason"),
        ]
        parts = call("generate", wish, ["text_output", "finish_reason"]).exec(decoupled=True)
        for part in parts:
            if sender.is_cancelled():
                parts.cancel()
                return
            # The final flag arrives as a separate response without outputs.
            if checked(part).output_tensors():
                text = [renamed(part, "text_output", "TEXT"), renamed(part, "finish_reason", "REASON")]
                finished = checked(call("finish", text, ["ANSWER", "IS_LAST"]).exec())
                sender.send(pb_utils.InferenceResponse(finished.output_tensors()))

    def finalize(self):
        """Wait for the requests in progress."""
        self.threads.shutdown()


def call(model, inputs, outputs):
    """A request to another model."""
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=outputs, inputs=inputs)


def checked(response):
    """The response, unless it is an error."""
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response


def renamed(response, name, new):
    """An output of one model as an input of the next."""
    return pb_utils.Tensor(new, pb_utils.get_output_tensor_by_name(response, name).as_numpy())
