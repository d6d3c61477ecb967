"""`POST /v1/embeddings`: its request, the inference request for it, and its response."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from naiad.protocol.inference import Buffer, OutputTensor
from naiad.protocol.steps import finish
from naiad_llm.openai.errors import SERVER_ERROR, ApiError
from naiad_llm.openai.model_inputs import EMBEDDING, ModelRequest
from naiad_llm.openai.requests import ANYTHING, TEXT, FieldRule, to_json, validate_fields
from naiad_llm.openai.single_response import BodySteps
from naiad_llm.openai.vllm_tensors import encoded_strings, sum_of

_LONG_TEXT = 64 << 10
"""Bytes of the model's vectors from which they are encoded in steps; fewer take below a millisecond."""
_RULES: dict[str, FieldRule] = {
    "model": TEXT,
    "input": ANYTHING,
    "dimensions": FieldRule("an integer", 1),
    "encoding_format": TEXT,
    "user": TEXT,
}
_FIXED: Mapping[str, object] = {
    "add_special_tokens": True, "embed_dtype": "float32", "endianness": "native", "embedding_types": ["float"],
    "output_dtype": "float", "truncate": "NONE", "late_chunking": False, "priority": 0,
    **dict.fromkeys((
        "truncate_prompt_tokens", "truncation_side", "truncation", "normalize", "normalized", "use_activation",
        "pooling_params", "pooling_type", "output_dimension", "messages", "chat_template", "chat_template_kwargs",
        "mm_processor_kwargs", "instruction", "prompt_name", "prompt", "input_type", "task", "cache_salt",
    )),
}  # fmt: skip
"""Fields of other servers that change a vector, with the values that do not."""


def read_embedding(document: Mapping[str, Any]) -> ModelRequest:
    """The request in the body of `POST /v1/embeddings`."""
    given = validate_fields(document, _RULES, ("model", "input"), fixed=_FIXED)
    if given.get("encoding_format", "float") not in {"float", "base64"}:
        raise ApiError("`encoding_format` must be float or base64", param="encoding_format")
    if not _is_input(given["input"]):
        raise ApiError(
            "`input` must be a non-empty string, an array of such strings, an array of token ids or an array of such "
            "arrays",
            param="input",
        )
    wanted: dict[str, Any] = {"input": given["input"]}
    if "dimensions" in given:
        wanted["pooling_params"] = {"dimensions": given["dimensions"]}
    rest = {name: value for name, value in given.items() if name != "input"}
    return ModelRequest(EMBEDDING, given["model"], to_json(wanted), partial(embedding_body, given=rest))


def _is_input(value: object) -> bool:
    if isinstance(value, str):
        return bool(value)
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(item, list) for item in value):
        return all(_are_tokens(item) for item in value)
    return all(isinstance(item, str) and item for item in value) or _are_tokens(value)


def _are_tokens(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(token, int) and not isinstance(token, bool) for token in value)


def embedding_body(outputs: Mapping[str, OutputTensor], given: Mapping[str, Any]) -> BodySteps | bytes:
    """The response to the request *given*, from the outputs of the model; the steps that make it, where it is long."""
    steps = _body_steps(outputs, given)
    text = outputs.get("text_output")
    return steps if text is not None and len(text.data) > _LONG_TEXT else b"".join(finish(steps))


def _body_steps(outputs: Mapping[str, OutputTensor], given: Mapping[str, Any]) -> BodySteps:
    """The response, a vector in each step: Python's numbers of one vector exist at a time."""
    is_base64 = given.get("encoding_format") == "base64"
    parts: list[Buffer] = [b'{"object":"list","data":[']
    for index, text in enumerate(encoded_strings(outputs.get("text_output"))):
        document = {"object": "embedding", "index": index, "embedding": _vector(text, is_base64=is_base64)}
        parts.append((b"," if index else b"") + orjson.dumps(document))
        del document  # else its numbers stay while the loop does other work
        yield
    tokens = sum_of(outputs.get("num_input_tokens")) or 0
    rest = {"model": given["model"], "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    parts += (b"],", orjson.dumps(rest)[1:])
    return parts


def _vector(text: Buffer, *, is_base64: bool) -> object:
    try:
        numbers = orjson.loads(text)
        array = np.array(numbers, "<f4")
    except (ValueError, TypeError) as problem:
        raise ApiError(f"The model did not return a vector: {problem}", status=SERVER_ERROR) from None
    if array.ndim != 1:
        raise ApiError(f"The model did not return a vector: the array has {array.ndim} dimensions", status=SERVER_ERROR)
    return base64.b64encode(array.tobytes()).decode() if is_base64 else numbers
