"""The inputs and outputs of all models of this backend: their configuration, reading and writing."""

from __future__ import annotations

import json
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from vllm_like.engines.base import CallerError

_WANTS = "return_"
_STRING = "TYPE_STRING"
_BOOL = "TYPE_BOOL"

INPUTS: Tuple[Tuple[str, str, int], ...] = (
    ("text_input", _STRING, 1),
    ("image", _STRING, -1),
    ("stream", _BOOL, 1),
    ("sampling_parameters", _STRING, 1),
    ("exclude_input_in_output", _BOOL, 1),
    ("return_finish_reason", _BOOL, 1),
    ("return_cumulative_logprob", _BOOL, 1),
    ("return_logprobs", _BOOL, 1),
    ("return_num_input_tokens", _BOOL, 1),
    ("return_num_output_tokens", _BOOL, 1),
    ("embedding_request", _STRING, 1),
    ("messages", _STRING, 1),
    ("return_message", _BOOL, 1),
    ("prompt_token_ids", "TYPE_INT64", -1),
    ("rerank_request", _STRING, 1),
    ("tokenizer_request", _STRING, 1),
    ("return_num_cached_tokens", _BOOL, 1),
    ("return_prompt", _BOOL, 1),
    ("return_stop_reason", _BOOL, 1),
    ("engine_request", _STRING, 1),
)
"""Names, types and sizes; all are optional. Triton's vLLM backend defines those up to `embedding_request`, and this one
the others."""
PATH_REQUEST = "path_request"
"""The input of models that serve paths of their engine's own server: path, content type and body."""

OUTPUTS: Tuple[Tuple[str, str, int], ...] = (
    ("text_output", _STRING, -1),
    ("finish_reason", _STRING, -1),
    ("cumulative_logprob", "TYPE_FP32", -1),
    ("logprobs", _STRING, -1),
    ("num_input_tokens", "TYPE_UINT32", 1),
    ("num_output_tokens", "TYPE_UINT32", -1),
    ("message", _STRING, -1),
    ("num_cached_tokens", "TYPE_UINT32", 1),
    ("prompt_text", _STRING, 1),
    ("prompt_logprobs", _STRING, 1),
    ("stop_reason", _STRING, -1),
    ("kv_transfer_params", _STRING, 1),
)

_NUMPY = {_STRING: np.object_, "TYPE_FP32": np.float32, "TYPE_UINT32": np.uint32}
_OUTPUT_TYPES = {name: _NUMPY[kind] for name, kind, _ in OUTPUTS}


def complete_config(config: Any, *, has_paths: bool = False) -> Any:
    """Add the inputs, the outputs and the transaction policy to a `ModelConfig` that lacks them."""
    document = config.as_dict()
    given = {tensor["name"] for tensor in document["input"]}
    for name, kind, size in (*INPUTS, *([(PATH_REQUEST, _STRING, -1)] if has_paths else [])):
        if name not in given:
            config.add_input({"name": name, "data_type": kind, "dims": [size], "optional": True})
    given = {tensor["name"] for tensor in document["output"]}
    for name, kind, size in OUTPUTS:
        if name not in given:
            config.add_output({"name": name, "data_type": kind, "dims": [size]})
    config.set_model_transaction_policy({"decoupled": True})
    config.set_max_batch_size(0)
    return config


class Inputs:
    """The input tensors of one request."""

    def __init__(self, request: Any) -> None:
        self._arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}

    def text(self, name: str) -> Optional[str]:
        """The single string of an input; None if the input is absent."""
        array = self._arrays.get(name)
        if array is None:
            return None
        if array.size != 1:
            raise CallerError(f"input '{name}' must have one element, got {array.size}")
        value = array.reshape(-1)[0]
        try:
            return value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as problem:
            raise CallerError(f"input '{name}' has a string that is not UTF-8: {problem}") from None

    def texts(self, name: str) -> List[bytes]:
        """All strings of an input; empty if the input is absent."""
        array = self._arrays.get(name)
        return [] if array is None else array.reshape(-1).tolist()

    def integers(self, name: str) -> Optional[List[int]]:
        """All integers of an input; None if the input is absent or empty."""
        array = self._arrays.get(name)
        if array is None or not array.size:
            return None
        numbers: List[int] = array.reshape(-1).tolist()
        return numbers

    def flag(self, name: str) -> Optional[bool]:
        """The single boolean of an input; None if the input is absent."""
        array = self._arrays.get(name)
        return None if array is None or not array.size else bool(array.reshape(-1)[0])

    def wanted(self) -> FrozenSet[str]:
        """Names of the inputs `return_...` that are true, without that beginning."""
        return frozenset(name[len(_WANTS) :] for name, *_ in INPUTS if name.startswith(_WANTS) and self.flag(name))


def response(outputs: Dict[str, Sequence[Any]]) -> Any:
    """A response with *outputs*, which have one value for each choice."""
    tensors = [pb_utils.Tensor(name, np.array(values, _OUTPUT_TYPES[name])) for name, values in outputs.items()]
    return pb_utils.InferenceResponse(tensors)


def error_response(text: str, code: Any) -> Any:
    """An error response."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


def to_json(value: Any) -> bytes:
    """*value* as compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
