"""The engine `onnx`: embeddings by an encoder in an ONNX file, with onnxruntime and a `tokenizer.json`."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from vllm_like import keys, values
from vllm_like.engines import threads
from vllm_like.engines.base import (
    CallerError,
    EmbeddingRequest,
    Engine,
    Generation,
    ResultSink,
    Sink,
    check_tokens,
    send_results,
    truncate_vectors,
)
from vllm_like.settings import Settings

DEFAULT_MAX_MODEL_LEN = 512
_USED = keys.words(
    "model tokenizer max_model_len runner task convert pooler_config served_model_name disable_log_stats"
)


def start(settings: Settings, log: Callable[[str], None], on_dead: Callable[[str], None]) -> Engine:  # noqa: ARG001 - cannot fail alone
    """Load a model; `ValueError` if the settings are invalid, or a package is missing."""
    keys.reject_unknown(settings.options, ("n_threads",), "'engine_options' in model.json")
    settings.log_ignored(_USED, log)
    return OnnxEngine(settings)


class OnnxEngine(Engine):
    """One encoder. Requests run one after the other; the texts of one request are one batch."""

    def __init__(self, settings: Settings) -> None:
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(
                f"the engine onnx needs the packages onnxruntime and tokenizers in '{sys.prefix}', the model's "
                f"environment: {error}"
            ) from None
        self.max_model_len = settings.number("max_model_len", DEFAULT_MAX_MODEL_LEN)
        self._tokenizer = Tokenizer.from_file(settings.find("tokenizer", "tokenizer.json"))
        self._tokenizer.no_padding()
        self._whole_tokenizer = Tokenizer.from_file(settings.find("tokenizer", "tokenizer.json"))
        self._whole_tokenizer.no_padding()
        self._whole_tokenizer.no_truncation()
        self._tokenizer.enable_truncation(self.max_model_len)
        self._pooling, self._normalizes = values.pooling(settings.arguments, settings.engine)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = (
            values.integer(settings.options, "n_threads", values.OPTIONS, least=1) or threads.default_count()
        )
        options.inter_op_num_threads = 1
        # Threads that spin between requests, the default, take CPU time from the server and other models.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = onnxruntime.InferenceSession(settings.find("model"), options, ["CPUExecutionProvider"])
        self._inputs = {one.name for one in self._session.get_inputs()}
        self._thread = ThreadPoolExecutor(1, "onnx")

    def generate(self, generation: Generation, sink: Sink) -> None:  # noqa: ARG002 - signature of Engine
        raise CallerError("this model supports embeddings only: send an 'embedding_request'")

    def embed(self, request: EmbeddingRequest, sink: ResultSink) -> None:
        def compute() -> Tuple[List[List[float]], int]:
            rows = [self._tokens(item) for item in request.inputs]
            return truncate_vectors(self._vectors(rows), request.dimensions), sum(map(len, rows))

        self._thread.submit(send_results, sink, compute)

    def _tokens(self, item: Any) -> List[int]:
        if isinstance(item, str):
            return list(self._tokenizer.encode(item).ids)
        if len(item) > self.max_model_len:
            raise CallerError(f"{len(item)} tokens are more than 'max_model_len' ({self.max_model_len})")
        return list(item)

    def _vectors(self, rows: List[List[int]]) -> List[List[float]]:
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        feed: Dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden, *_) = self._session.run(None, {name: feed[name] for name in feed if name in self._inputs})
        if self._pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weight = mask[:, :, None].astype(np.float32)
            pooled = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
        if self._normalizes:
            pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        vectors: List[List[float]] = pooled.astype(np.float32).tolist()
        return vectors

    def encode(self, text: str, *, adds_special: bool) -> Tuple[List[int], List[str]]:
        encoded = self._whole_tokenizer.encode(text, add_special_tokens=adds_special)
        return list(encoded.ids), list(encoded.tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        check_tokens(tokens, self._whole_tokenizer.get_vocab_size(), "tokens")
        return str(self._whole_tokenizer.decode(list(tokens), skip_special_tokens=False))

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
