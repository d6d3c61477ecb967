"""The words of a text, by a model in the style of older tutorials."""

import triton_python_backend.api as triton_backend


class TritonPythonModel:
    """Returns a list of tensors for each request instead of an InferenceResponse."""

    def execute(self, requests):
        """`request.inputs` is a list here, in the order in which the client sent them."""
        results = []
        for request in requests:
            text = request.inputs[0].as_numpy()[0].decode()
            results.append([triton_backend.Tensor(name="WORDS", data=text.split())])
        return results
