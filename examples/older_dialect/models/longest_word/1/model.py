"""The longest word of a text; another model finds the words."""

import triton_python_backend.api as triton_backend


class TritonPythonModel:
    """Chains models with `infer`."""

    def execute(self, requests):
        """Hand the text on, and answer from what comes back."""
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
