"""Embeddings to the sentence whose embedding is most similar."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The last step of `similar`."""

    def initialize(self, args):
        """Read what export.py has written into this folder."""
        folder = Path(pb_utils.get_model_dir())
        self.embeddings = np.load(folder / "embeddings.npy")
        self.sentences = (folder / "sentences.txt").read_text(encoding="utf-8").splitlines()

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "EMBEDDING").as_numpy()
            similarities = rows @ self.embeddings.T
            best = similarities.argmax(axis=1)
            sentences = np.array([[self.sentences[index].encode()] for index in best], dtype=object)
            scores = similarities.max(axis=1, keepdims=True).astype(np.float32)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("SENTENCE", sentences), pb_utils.Tensor("SCORE", scores)])
            )
        return responses
