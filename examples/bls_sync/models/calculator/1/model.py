"""Passes each request to the model that it names. An ensemble cannot choose a model at run time."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls other models of the same server ("business logic scripting")."""

    def execute(self, requests):
        """Compute one response for each request; a failed request does not affect the others."""
        return [self.calculate(request) for request in requests]

    def calculate(self, request):
        """Call the model named by OPERATION."""
        # Strings arrive as an array of bytes.
        operation = pb_utils.get_input_tensor_by_name(request, "OPERATION").as_numpy()[0].decode()
        call = pb_utils.InferenceRequest(
            model_name=operation,
            requested_output_names=["RESULT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, name) for name in ("LEFT", "RIGHT")],
        )
        answer = call.exec()  # blocks this instance only
        # A failed call does not raise: its response holds the error.
        if answer.has_error():
            message = f"cannot {operation}: {answer.error().message()}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "RESULT")])
