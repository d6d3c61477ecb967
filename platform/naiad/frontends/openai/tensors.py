"""Questions as tensors of Triton's vLLM backend, and the answers read from its outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import orjson

from naiad.frontends.kserve_http.generate_request import deduce_shape
from naiad.frontends.kserve_http.json_tensors import pack_strings, split_strings
from naiad.frontends.openai.errors import SERVER_ERROR, ApiError
from naiad.frontends.openai.fields import as_json
from naiad.frontends.openai.questions import Question
from naiad.frontends.openai.template import ChatTemplate
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor, Parameter
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad.protocol.numpy_types import NUMPY_TYPES

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
MESSAGES = "messages"
EMBEDDING_REQUEST = "embedding_request"
_SAMPLING = "sampling_parameters"
_HALVES = re.compile("[\ud800-\udfff]")
_UNFINISHED = ("", "None")
"""What the backend says of a choice that goes on."""


def writes_text(metadata: ModelMetadata) -> bool:
    """Whether a model can be served by this API: text goes in, text comes out."""
    return _has(metadata.inputs, TEXT_INPUT) and _has(metadata.outputs, TEXT_OUTPUT)


def makes_vectors(metadata: ModelMetadata) -> bool:
    """Whether a model takes requests for embeddings."""
    return _has(metadata.inputs, EMBEDDING_REQUEST) and _has(metadata.outputs, TEXT_OUTPUT)


def _has(tensors: tuple[TensorMetadata, ...], name: str) -> bool:
    return any(tensor.name == name and tensor.datatype == "BYTES" for tensor in tensors)


def requests_for(
    question: Question, metadata: ModelMetadata, template: ChatTemplate | None = None, lora: str = ""
) -> Iterator[InferRequest]:
    """One inference for each prompt of *question*.

    Inputs that the model does not have are left out: they only say how the answer is to be given. A model without
    `sampling_parameters` gets those as parameters of the request.

    Raises:
        ApiError: If the model cannot be asked this.
    """
    if not writes_text(metadata):
        raise ApiError(
            f"The model `{metadata.name}` writes no text: it needs a string input '{TEXT_INPUT}' and a string output "
            f"'{TEXT_OUTPUT}'",
            param="model",
        )
    takes_messages = question.is_chat and _has(metadata.inputs, MESSAGES)
    if question.is_chat and not takes_messages and template is None:
        raise ApiError(
            f"The model `{metadata.name}` takes no conversations: it has no string input '{MESSAGES}'; ask it at "
            "/v1/completions, or start the server with --openai-chat-template",
            param="model",
        )
    sampling = {**question.sampling, "lora_name": lora} if lora else question.sampling
    # In a stream counts are dear: the engine gives them with each token, and each response carries them.
    counts = question.include_usage or not question.stream
    wishes: dict[str, object] = {
        "stream": question.stream,
        "exclude_input_in_output": True,  # what is echoed is put before the text here
        "return_finish_reason": True,
        "return_num_input_tokens": counts,
        "return_num_output_tokens": counts,
        "return_logprobs": question.alternatives is not None,
        "return_message": takes_messages,
        _SAMPLING: as_json(sampling),
    }
    prompt_input = MESSAGES if takes_messages else TEXT_INPUT
    takes_sampling = _has(metadata.inputs, _SAMPLING)
    parameters: Mapping[str, Parameter] = {} if takes_sampling else _scalars(sampling)
    renderer = template if question.is_chat and not takes_messages else None
    for prompt in question.prompts:
        text = prompt if renderer is None else renderer.prompt(orjson.loads(prompt))
        yield infer_request(metadata, {prompt_input: text, **wishes}, parameters)


def infer_request(
    metadata: ModelMetadata, values: Mapping[str, object], parameters: Mapping[str, Parameter]
) -> InferRequest:
    """An inference that gives the inputs *values*, those that the model has."""
    if TEXT_INPUT not in values and any(tensor.name == TEXT_INPUT and tensor.required for tensor in metadata.inputs):
        # Configurations written for Triton's vLLM backend insist on a prompt, which says nothing beside a conversation.
        values = {**values, TEXT_INPUT: ""}
    tensors = [_input(tensor, values[tensor.name]) for tensor in metadata.inputs if tensor.name in values]
    return InferRequest(metadata.name, -1, tensors, parameters=parameters)


def _scalars(sampling: Mapping[str, Any]) -> dict[str, Parameter]:
    return {name: value for name, value in sampling.items() if isinstance(value, bool | int | float | str)}


def _input(tensor: TensorMetadata, value: object) -> InputTensor:
    shape = deduce_shape(tensor.shape, 1)
    datatype = BY_NAME[tensor.datatype]
    if shape is None or prod(shape) != 1 or (datatype is Datatype.BYTES) != isinstance(value, str):
        raise ApiError(f"Input '{tensor.name}' of the model takes no single {type(value).__name__}", param="model")
    if isinstance(value, str):
        return InputTensor(tensor.name, datatype, shape, pack_strings([value])[0])
    return InputTensor(tensor.name, datatype, shape, np.array([value], NUMPY_TYPES[datatype]).tobytes())


@dataclass(slots=True)
class Piece:
    """What one choice has grown by.

    Attributes:
        index: Of the choice among those of its prompt.
        text: New text.
        finish_reason: Why the choice ended; None while it goes on.
        logprobs: For each new token its alternatives by id, as vLLM gives them.
        message: The same and more, such as calls of tools, as a part of a chat's message; None if the model gave none.
    """

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    message: dict[str, Any] | None = None


@dataclass(slots=True)
class Reply:
    """One response of a model.

    Attributes:
        pieces: One for each choice.
        prompt_tokens: Tokens of the prompt; None if the model did not say.
        tokens: New tokens of all choices; None likewise.
    """

    pieces: list[Piece]
    prompt_tokens: int | None
    tokens: int | None


def read_reply(response: InferResponse) -> Reply:
    """Read what a model answered, not an error.

    Raises:
        ApiError: If these are not the outputs of such a model.
    """
    outputs = {output.name: output for output in response.outputs}
    if TEXT_OUTPUT not in outputs:
        raise ApiError(f"The model answered without '{TEXT_OUTPUT}'", status=SERVER_ERROR)
    texts = strings(outputs[TEXT_OUTPUT])
    pieces = [Piece(index, text) for index, text in enumerate(texts)]
    try:
        for piece, reason in zip(pieces, strings(outputs.get("finish_reason")), strict=False):
            piece.finish_reason = None if reason in _UNFINISHED else reason
        for piece, logprobs in zip(pieces, strings(outputs.get("logprobs")), strict=False):
            piece.logprobs = _json(logprobs) or []
        for piece, message in zip(pieces, strings(outputs.get("message")), strict=False):
            piece.message = _message(_json(message))
    except ValueError as problem:
        raise ApiError(f"The model answered with JSON that is none: {problem}", status=SERVER_ERROR) from None
    return Reply(pieces, total(outputs.get("num_input_tokens")), total(outputs.get("num_output_tokens")))


def _json(text: str) -> Any:
    """What the JSON says; also with the infinities that Python writes for probabilities of zero.

    Python's JSON may also hold halves of pairs of surrogates, where a model has cut a character in two. No UTF-8 has
    them: each becomes the character for what cannot be shown, as do other bytes that are none.
    """
    try:
        return orjson.loads(text or b"null")
    except orjson.JSONDecodeError:
        return _without_halves(json.loads(text))


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_halves(each) for each in value]
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(each) for name, each in value.items()}
    return value


def _message(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ApiError("The model answered with a 'message' that is no JSON object", status=SERVER_ERROR)
    return value or {}


def strings(output: OutputTensor | None) -> list[str]:
    """The elements of a string output; none if there is no output."""
    if output is None:
        return []
    if output.datatype is not Datatype.BYTES:
        raise ApiError(f"The model's output '{output.name}' must be of strings", status=SERVER_ERROR)
    return [element.decode("utf-8", "replace") for element in split_strings(output.data)]


def total(output: OutputTensor | None) -> int | None:
    """The sum of an integer output; None if there is no output."""
    if output is None:
        return None
    kind = NUMPY_TYPES.get(output.datatype)
    if kind is None or kind.kind not in "iu":
        raise ApiError(f"The model's output '{output.name}' must be of integers", status=SERVER_ERROR)
    return int(np.frombuffer(output.data, kind).sum())
