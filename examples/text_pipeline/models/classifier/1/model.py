"""A linear model over words: the weights of a text's words, averaged, as probabilities. train.py made the weights."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Has one line of weights for each word of the vocabulary and one column for each label."""

    def initialize(self, args):
        """Read the weights from this file's folder."""
        self.weights = np.loadtxt(Path(pb_utils.get_model_dir(), "weights.txt"), dtype=np.float32)

    def execute(self, requests):
        """Compute one response for each request; their numbers of tokens differ."""
        responses = []
        for request in requests:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS").as_numpy()
            # Padding (0) and unknown words (1) have zero weights: divide by the number of known words only.
            known = np.maximum((tokens > 1).sum(axis=1, keepdims=True), 1)
            sums = self.weights[tokens].sum(axis=1) / known
            powers = np.exp(sums - sums.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", scores)]))
        return responses
