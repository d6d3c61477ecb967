"""The longest word of a text; another model finds the words."""

import triton_python_backend.api as triton_backend


class TritonPythonModel:
    """Calls another model with `infer`."""

    def execute(self, requests):
        """Pass the text to the other model, and compute the result from its output."""
        results = []
        for request in requests:
            found = triton_backend.infer(model_name="words", inputs=[request.inputs[0]])
            longest = max(found["WORDS"].as_numpy(), key=len)
            results.append(
                [
                    triton_backend.Tensor(name="LONGEST", data=[longest]),
                    triton_backend.Tensor(name="LENGTH", data=[len(longest)], dtype=triton_backend.DataType.INT32),
                ]
            )
        return results
