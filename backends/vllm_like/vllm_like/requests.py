"""Reads the input tensors of a request: for text, vectors, scores, or the tokenizer."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from vllm_like import chat, constraints, engine_control, engine_paths, json_text, sampling, tokenizing
from vllm_like.engines.base import CallerError, EmbeddingRequest, Engine, Generation, PathRequest, RankRequest
from vllm_like.tensors import PATH_REQUEST, Inputs

_MAX_TOKEN_ID = (1 << 31) - 1
"""Engines store token ids in 32 bits; a larger number would select another token. Each engine checks its vocabulary."""


@dataclass(frozen=True)
class ResponseOptions:
    """What the responses to a request for text contain."""

    stream: bool = False  # whether each delta is sent at once; else there is one response
    echo: str = ""  # prompt to repeat before the text; "" for none
    choices: int = 1  # number of texts to generate
    finish_reason: bool = False  # whether to send the output of this name; the same for all fields named as outputs
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    message: bool = False
    single_call: bool = False  # whether an answer has at most one tool call; the model may write more
    num_cached_tokens: bool = False
    stop_reason: bool = False
    # Whether to send the prompt's text, and its log probabilities if the request has the parameter for them.
    prompt: bool = False
    constraint: Optional[constraints.Constraint] = None  # what the response must be; None for any text


@dataclass(frozen=True)
class TextRequest:
    """A request for text: for the engine, and for its response sink."""

    generation: Generation
    options: ResponseOptions


@dataclass(frozen=True)
class Question:
    """A question to the engine, which *respond* answers with a JSON object; it blocks."""

    given: Dict[str, Any]
    respond: Callable[[Engine, Dict[str, Any]], Dict[str, Any]]


def read_request(
    request: Any, request_id: str, rules: constraints.ConstraintRules, paths: Sequence[str]
) -> Union[TextRequest, EmbeddingRequest, RankRequest, Question, PathRequest]:
    """The request in the input tensors of *request*; *request_id* is unique among the running requests."""
    inputs = Inputs(request)
    embedding = inputs.text("embedding_request")
    if embedding is not None:
        return _embedding(embedding, request_id, counts=bool(inputs.flag("return_num_input_tokens")))
    ranking = inputs.text("rerank_request")
    if ranking is not None:
        return _ranking(ranking, request_id, counts=bool(inputs.flag("return_num_input_tokens")))
    tokenizing_request = inputs.text("tokenizer_request")
    if tokenizing_request is not None:
        return Question(tokenizing.read_request(tokenizing_request, rules), tokenizing.respond)
    control = inputs.text("engine_request")
    if control is not None:
        return Question(engine_control.read_request(control), engine_control.respond)
    parts = inputs.texts(PATH_REQUEST)
    if parts:
        return engine_paths.read_request(parts, paths)
    given = inputs.text("sampling_parameters")
    parameters = (
        sampling.parse(given, "'sampling_parameters'")
        if given is not None
        else sampling.parse(request.parameters(), "the request's parameters", sampling.NOT_SAMPLING_IN_REQUESTS)
    )
    lora = parameters.pop("lora_name", "")
    given = inputs.text("messages")
    conversation, constraint = (None, None) if given is None else rules.apply(chat.parse(given), parameters)
    text = inputs.text("text_input") or ""
    token_ids = inputs.integers("prompt_token_ids")
    if conversation is None and not text and token_ids is None:
        raise CallerError("'text_input' must hold a prompt, or 'messages' a conversation")
    if token_ids is not None:
        _check_token_ids(token_ids, is_only_prompt=conversation is None and not text)
    options = _response_options(
        inputs, text, parameters.get("n", 1), constraint, is_chat=conversation is not None, is_text=token_ids is None
    )
    if conversation is not None and conversation.get("parallel_tool_calls") is False:
        options = replace(options, single_call=True)
    generation = Generation(
        request_id=request_id,
        prompt=text if token_ids is None else token_ids,
        chat=conversation,
        sampling=parameters,
        lora=lora,
        images=_images(inputs),
        wants_logprobs=options.logprobs or options.cumulative_logprob or "logprobs" in parameters,
        wants_counts=options.stream and (options.num_input_tokens or options.num_output_tokens),
        is_stream=options.stream,
        wants_prompt=options.prompt,
        wants_stop=options.stop_reason,
        constraint=constraint,
        has_images=conversation is not None and bool(chat.take_images(conversation)[1]),
    )
    return TextRequest(generation, options)


def _check_token_ids(token_ids: List[int], *, is_only_prompt: bool) -> None:
    if not is_only_prompt:
        raise CallerError("'prompt_token_ids' cannot be combined with 'text_input' or 'messages'")
    wrong = next((token for token in token_ids if not 0 <= token <= _MAX_TOKEN_ID), None)
    if wrong is not None:
        raise CallerError(f"'prompt_token_ids' holds {wrong}; token ids are between 0 and {_MAX_TOKEN_ID}")


def _response_options(
    inputs: Inputs,
    prompt: str,
    choices: int,
    constraint: Optional[constraints.Constraint],
    *,
    is_chat: bool,
    is_text: bool,
) -> ResponseOptions:
    stream = bool(inputs.flag("stream"))
    exclude = inputs.flag("exclude_input_in_output")
    if exclude is None:
        exclude = stream or is_chat or not is_text
    if not exclude and stream:
        raise CallerError("When streaming, `exclude_input_in_output` = False is not allowed.")
    if not exclude and is_chat:
        raise CallerError("With `messages`, `exclude_input_in_output` = False is not allowed.")
    if not exclude and not is_text:
        raise CallerError("With `prompt_token_ids`, `exclude_input_in_output` = False is not allowed.")
    return ResponseOptions(
        stream=stream,
        echo="" if exclude else prompt,
        choices=choices,
        finish_reason=bool(inputs.flag("return_finish_reason")),
        cumulative_logprob=bool(inputs.flag("return_cumulative_logprob")),
        logprobs=bool(inputs.flag("return_logprobs")),
        num_input_tokens=bool(inputs.flag("return_num_input_tokens")),
        num_output_tokens=bool(inputs.flag("return_num_output_tokens")),
        message=bool(inputs.flag("return_message")),
        constraint=constraint,
        num_cached_tokens=bool(inputs.flag("return_num_cached_tokens")),
        prompt=bool(inputs.flag("return_prompt")),
        stop_reason=bool(inputs.flag("return_stop_reason")),
    )


def _images(inputs: Inputs) -> List[bytes]:
    images = []
    for number, encoded in enumerate(inputs.texts("image")):
        if not encoded:
            continue
        try:
            images.append(base64.b64decode(encoded, validate=True))
        except (binascii.Error, ValueError):
            raise CallerError(f"element {number} of input 'image' is not valid base64") from None
    return images


def _embedding(text: str, request_id: str, *, counts: bool) -> EmbeddingRequest:
    given = json_text.parse(text, "'embedding_request'")
    if not isinstance(given, dict) or "input" not in given:
        raise CallerError("'embedding_request' must be a JSON object with 'input'")
    pooling = given.get("pooling_params") or {}
    if not isinstance(pooling, dict):
        raise CallerError("'pooling_params' must be an object")
    json_text.reject_unknown(given, ("input", "pooling_params"), "'embedding_request'")
    json_text.reject_unknown(pooling, ("dimensions",), "'pooling_params'")
    dimensions = pooling.get("dimensions")
    if isinstance(dimensions, str) and dimensions.isascii() and dimensions.isdecimal():  # vLLM's frontend sends strings
        dimensions = int(dimensions)
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions < 1):
        raise CallerError("'dimensions' must be an integer of 1 or more")
    return EmbeddingRequest(request_id, _embedding_inputs(given["input"]), dimensions, counts)


def _ranking(text: str, request_id: str, *, counts: bool) -> RankRequest:
    given = json_text.parse(text, "'rerank_request'")
    query, documents = (given.get("query"), given.get("documents")) if isinstance(given, dict) else (None, None)
    if not isinstance(query, str) or not isinstance(documents, list) or not documents:
        raise CallerError("'rerank_request' must be a JSON object with a 'query' and a list of 'documents'")
    if not all(isinstance(document, str) for document in documents):
        raise CallerError("'documents' must be a list of strings")
    return RankRequest(request_id, query, documents, counts)


def _embedding_inputs(given: Any) -> List[Any]:
    """The items to embed, each a text or a list of token ids."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(token, int) for token in given):
            return [given]
        if all(isinstance(item, str) for item in given):
            return given
        if all(isinstance(item, list) and item and all(isinstance(token, int) for token in item) for item in given):
            return given
    raise CallerError("'input' must be a string, a list of strings, a list of token ids or a list of such lists")
