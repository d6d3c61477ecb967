"""Texts to token numbers; the texts of a batch are padded to the longest one."""

import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

PADDING, UNKNOWN = 0, 1  # the first two lines of vocabulary.txt


class TritonPythonModel:
    """Maps each word of vocabulary.txt to its line number."""

    def initialize(self, args):
        """Read the vocabulary from this file's folder."""
        words = Path(pb_utils.get_model_dir(), "vocabulary.txt").read_text(encoding="utf-8").split()
        self.numbers = {word: number for number, word in enumerate(words)}

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
            tokens = [self.tokens(text.decode()) for text in texts]
            padded = np.full((len(texts), max(map(len, tokens))), PADDING, dtype=np.int32)
            for row, numbers in zip(padded, tokens):
                row[: len(numbers)] = numbers
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOKENS", padded)]))
        return responses

    def tokens(self, text):
        """The token numbers of a text; at least one, also for a text without words."""
        words = re.findall(r"[a-z]+", text.lower()) or [""]
        return [self.numbers.get(word, UNKNOWN) for word in words]
