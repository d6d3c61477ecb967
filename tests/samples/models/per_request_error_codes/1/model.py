import triton_python_backend_utils as pb_utils

CODES = [
    getattr(pb_utils.TritonError, name)
    for name in [
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    ]
]


class TritonPythonModel:
    """Answers with the error whose number the first value is."""

    def execute(self, requests):
        responses = []
        for request in requests:
            code = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"code {code}", CODES[code])))
        return responses
