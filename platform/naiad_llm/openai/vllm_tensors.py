"""Requests and responses of a model in the tensor convention of Triton's vLLM backend.

`infer_requests` turns a `TextRequest` into the model's input tensors; `read_output` turns its output tensors into
`ModelOutput`. Any model with the string tensors `text_input` and `text_output` can be served: inputs that a model does
not declare are left out, and outputs that it does not return are treated as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import orjson

from naiad.core.foreign_json import read_json
from naiad.frontends.kserve_http.generate_request import deduce_shape
from naiad.frontends.kserve_http.json_tensors import pack_strings, split_strings
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor, Parameter
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad.protocol.numpy_types import NUMPY_TYPES
from naiad.protocol.text_models import (
    TEXT_INPUT,
    TEXT_OUTPUT,
    can_generate_text,
    has_string,
)
from naiad_llm.openai.errors import SERVER_ERROR, ApiError
from naiad_llm.openai.requests import TextRequest, to_json
from naiad_llm.openai.template import ChatTemplate

MESSAGES = "messages"
_PROMPT_IDS = "prompt_token_ids"
_PROMPT_TEXT = "prompt_text"
_PROMPT_LOGPROBS = "prompt_logprobs"
_TRANSFER = "kv_transfer_params"
_SAMPLING = "sampling_parameters"
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNFINISHED = ("", "None")  # values of the output `finish_reason` for a choice that is not finished


def infer_requests(
    request: TextRequest, metadata: ModelMetadata, template: ChatTemplate | None = None, lora: str = ""
) -> Iterator[InferRequest]:
    """One inference request for each prompt; *template* renders chats for models without the input `messages`.

    A model without the input `sampling_parameters` receives them as parameters of the inference request.
    """
    if not can_generate_text(metadata):
        raise ApiError(
            f"The model `{metadata.name}` does not generate text: it needs a string input '{TEXT_INPUT}' and a string "
            f"output '{TEXT_OUTPUT}'",
            param="model",
        )
    takes_messages = request.is_chat and has_string(metadata.inputs, MESSAGES)
    if request.is_chat and not takes_messages and template is None:
        raise ApiError(
            f"The model `{metadata.name}` does not support chat: it has no string input '{MESSAGES}'; use "
            "/v1/completions, or start the server with --openai-chat-template",
            param="model",
        )
    sampling = {**request.sampling, "lora_name": lora} if lora else request.sampling
    # Counts are expensive in a stream: the model computes and sends them with every token.
    counts = request.include_usage or not request.stream
    options: dict[str, object] = {
        "stream": request.stream,
        "exclude_input_in_output": True,  # `text_response` implements `echo`, for any model
        "return_finish_reason": True,
        "return_num_input_tokens": counts,
        "return_num_output_tokens": counts,
        "return_num_cached_tokens": counts,
        "return_logprobs": request.top_logprobs is not None,
        "return_prompt": request.echo,
        "return_stop_reason": "stop" in sampling,
        "return_message": takes_messages,
        _SAMPLING: to_json(sampling),
    }
    if request.echo:
        _check_echo(request, metadata)
    text_name = MESSAGES if takes_messages else TEXT_INPUT
    takes_sampling = has_string(metadata.inputs, _SAMPLING)
    scalars = {name: value for name, value in sampling.items() if isinstance(value, bool | int | float | str)}
    parameters: Mapping[str, Parameter] = {} if takes_sampling else scalars
    renderer = template if request.is_chat and not takes_messages else None
    for prompt in request.prompts:
        if not isinstance(prompt, str):
            _check_takes_token_ids(metadata)
            yield build_infer_request(metadata, {_PROMPT_IDS: prompt, **options}, parameters)
            continue
        text = prompt if renderer is None else renderer.prompt(orjson.loads(prompt))
        yield build_infer_request(metadata, {text_name: text, **options}, parameters)


def _check_echo(request: TextRequest, metadata: ModelMetadata) -> None:
    outputs = {tensor.name for tensor in metadata.outputs}
    if request.top_logprobs is not None and _PROMPT_LOGPROBS not in outputs:
        raise ApiError(
            f"The model `{metadata.name}` does not support `echo` with `logprobs`: it has no output "
            f"'{_PROMPT_LOGPROBS}' with the probabilities of the prompt",
            param="echo",
        )
    if _PROMPT_TEXT not in outputs and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise ApiError(
            f"The model `{metadata.name}` does not support `echo` for prompts of token ids: it has no output "
            f"'{_PROMPT_TEXT}' with their text",
            param="echo",
        )


def _check_takes_token_ids(metadata: ModelMetadata) -> None:
    if not any(tensor.name == _PROMPT_IDS and tensor.datatype == "INT64" for tensor in metadata.inputs):
        raise ApiError(
            f"The model `{metadata.name}` does not support prompts of token ids: it has no input '{_PROMPT_IDS}'; "
            "send the prompt as text",
            param="prompt",
        )


def build_infer_request(
    metadata: ModelMetadata, values: Mapping[str, object], parameters: Mapping[str, Parameter]
) -> InferRequest:
    """An inference request with those of the inputs *values* that the model declares."""
    if TEXT_INPUT not in values and any(tensor.name == TEXT_INPUT and tensor.required for tensor in metadata.inputs):
        # Configurations for Triton's vLLM backend declare `text_input` as required, also for requests without a prompt.
        values = {**values, TEXT_INPUT: ""}
    tensors = [_input_tensor(tensor, values[tensor.name]) for tensor in metadata.inputs if tensor.name in values]
    return InferRequest(metadata.name, -1, tensors, parameters=parameters)


def _input_tensor(tensor: TensorMetadata, value: object) -> InputTensor:
    if isinstance(value, list):  # token ids
        return InputTensor(tensor.name, Datatype.INT64, (len(value),), np.array(value, np.int64).tobytes())
    shape = deduce_shape(tensor.shape, 1)
    datatype = BY_NAME[tensor.datatype]
    if shape is None or prod(shape) != 1 or (datatype is Datatype.BYTES) != isinstance(value, str):
        raise ApiError(
            f"Input '{tensor.name}' of the model does not accept one {type(value).__name__} value", param="model"
        )
    if isinstance(value, str):
        return InputTensor(tensor.name, datatype, shape, pack_strings([value]))
    return InputTensor(tensor.name, datatype, shape, np.array([value], NUMPY_TYPES[datatype]).tobytes())


@dataclass(slots=True)
class ChoiceDelta:
    """New output of one choice."""

    index: int
    text: str
    finish_reason: str | None = None
    # For each new token its most likely alternatives by token id, in vLLM's form.
    logprobs: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    # New members of a chat's message, such as tool calls; may repeat the text. None if the model sent none.
    message: dict[str, Any] | None = None
    stop_reason: str = ""  # the text in `stop` that has ended it; "" if none did, or the model does not tell


@dataclass(slots=True)
class ModelOutput:
    """The outputs of one response of a model, a delta for each choice; None for what the model did not report."""

    deltas: list[ChoiceDelta]
    prompt_tokens: int | None
    tokens: int | None
    cached_tokens: int | None = None
    prompt_text: str | None = None
    prompt_logprobs: list[Any] | None = None
    transfer: dict[str, Any] | None = None


def read_output(response: InferResponse) -> ModelOutput:
    """The outputs of a response that is not an error; `ApiError` if they are not those of the convention."""
    outputs = {output.name: output for output in response.outputs}
    if TEXT_OUTPUT not in outputs:
        raise ApiError(f"The model returned no output '{TEXT_OUTPUT}'", status=SERVER_ERROR)
    texts = strings(outputs[TEXT_OUTPUT])
    deltas = [ChoiceDelta(index, text) for index, text in enumerate(texts)]
    try:
        for delta, reason in zip(deltas, strings(outputs.get("finish_reason")), strict=False):
            delta.finish_reason = None if reason in _UNFINISHED else reason
        for delta, stop in zip(deltas, strings(outputs.get("stop_reason")), strict=False):
            delta.stop_reason = stop
        for delta, logprobs in zip(deltas, strings(outputs.get("logprobs")), strict=False):
            delta.logprobs = _json(logprobs) or []
        for delta, message in zip(deltas, strings(outputs.get("message")), strict=False):
            delta.message = _message(_json(message))
        prompt_logprobs, transfer = _first_json(outputs.get(_PROMPT_LOGPROBS)), _first_json(outputs.get(_TRANSFER))
    except ValueError as problem:
        raise ApiError(f"The model returned invalid JSON: {problem}", status=SERVER_ERROR) from None
    return ModelOutput(
        deltas,
        sum_of(outputs.get("num_input_tokens")),
        sum_of(outputs.get("num_output_tokens")),
        sum_of(outputs.get("num_cached_tokens")),
        next(iter(strings(outputs.get(_PROMPT_TEXT))), None),
        prompt_logprobs,
        transfer,
    )


def _first_json(output: OutputTensor | None) -> Any:
    """The value of the first string of an output, which is JSON; None if the output is absent or empty."""
    return None if output is None else next(map(_json, strings(output)), None)


def _json(text: str) -> Any:
    """The value of JSON written by Python's `json` module, which is a superset of the JSON that orjson accepts.

    Python writes `-Infinity` for the logarithm of a probability of zero. It also writes lone surrogates, which a
    tokenizer produces when it splits a character in two; UTF-8 cannot encode them, so each becomes U+FFFD.
    """
    try:
        return orjson.loads(text or b"null")
    except orjson.JSONDecodeError:
        return _replace_surrogates(read_json(text))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(each) for name, each in value.items()}
    return value


def _message(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ApiError("The model returned an output 'message' that is not a JSON object", status=SERVER_ERROR)
    return value or {}


def strings(output: OutputTensor | None) -> list[str]:
    """The elements of a string output; empty if the output is absent."""
    return [element.decode("utf-8", "replace") for element in encoded_strings(output)]


def encoded_strings(output: OutputTensor | None) -> Iterable[bytes]:
    """The elements of a string output, as the model encoded them; empty if the output is absent."""
    if output is None:
        return ()
    if output.datatype is not Datatype.BYTES:
        raise ApiError(
            f"The output '{output.name}' of the model must have the datatype BYTES, not {output.datatype.name}",
            status=SERVER_ERROR,
        )
    return split_strings(output.data)


def sum_of(output: OutputTensor | None) -> int | None:
    """The sum of the elements of an integer output; None if the output is absent."""
    if output is None:
        return None
    kind = NUMPY_TYPES.get(output.datatype)
    if kind is None or kind.kind not in "iu":
        raise ApiError(
            f"The output '{output.name}' of the model must have an integer datatype, not {output.datatype.name}",
            status=SERVER_ERROR,
        )
    return int(np.frombuffer(output.data, kind).sum())
