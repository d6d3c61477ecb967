"""Text in, label out: tokenizer, classifier and labels, one after the other."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls two models and returns the name of the label with the best score."""

    def initialize(self, args):
        """Read the names of the labels."""
        labels = Path(pb_utils.get_model_dir(), "labels.txt").read_text(encoding="utf-8").split()
        self.labels = np.array([label.encode() for label in labels], dtype=object)

    def execute(self, requests):
        """Compute one response for each request."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """The best label of each text of a request."""
        try:
            tokens = call("tokenizer", pb_utils.get_input_tensor_by_name(request, "TEXT"), "TOKENS")
            scores = call("classifier", tokens, "SCORES").as_numpy()
        except pb_utils.TritonModelException as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        best = scores.argmax(axis=1)[:, None]
        outputs = [
            pb_utils.Tensor("LABEL", self.labels[best]),
            pb_utils.Tensor("SCORE", np.take_along_axis(scores, best, axis=1)),
        ]
        return pb_utils.InferenceResponse(outputs)


def call(model, tensor, output):
    """Run one step: pass a tensor to a model and return its output."""
    request = pb_utils.InferenceRequest(model_name=model, requested_output_names=[output], inputs=[tensor])
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, output)
