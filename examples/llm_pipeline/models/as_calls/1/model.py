"""Prepares, generates and finishes by calling three models; parts are sent on as they come."""

from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
AT_ONCE = 8


class TritonPythonModel:
    """Each request has a thread, so that one long answer does not hold up the next."""

    def initialize(self, args):
        """Make the threads."""
        self.threads = ThreadPoolExecutor(AT_ONCE)

    def execute(self, requests):
        """Begin, and come back for more."""
        for request in requests:
            self.threads.submit(self.answer, request, request.get_response_sender())

    def answer(self, request, sender):
        """One request, to its end."""
        try:
            self.chain(request, sender)
            sender.send(flags=FINAL)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is to be told
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), flags=FINAL)

    def chain(self, request, sender):
        """The three steps."""
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
            # The end, sent without outputs, is a response of its own.
            if checked(part).output_tensors():
                text = [renamed(part, "text_output", "TEXT"), renamed(part, "finish_reason", "REASON")]
                finished = checked(call("finish", text, ["ANSWER", "IS_LAST"]).exec())
                sender.send(pb_utils.InferenceResponse(finished.output_tensors()))

    def finalize(self):
        """Let answers under way come to their end."""
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
