"""Reads the input tensors of a request: for text, vectors, scores, or the tokenizer."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, FrozenSet, List, Optional, Sequence, Union

from vllm_like import chat, constraints, engine_paths, json_text, questions, sampling
from vllm_like.engines.base import CallerError, EmbeddingRequest, Generation, PathRequest, RankRequest
from vllm_like.tensors import PATH_REQUEST, Inputs

_MAX_TOKEN_ID = (1 << 31) - 1
"""Engines store token ids in 32 bits; a larger number would select another token. Each engine checks its vocabulary."""


@dataclass(frozen=True)
class ResponseOptions:
    """What the responses to a request for text contain."""

    stream: bool = False  # whether each delta is sent at once; else there is one response
    echo: str = ""  # prompt to repeat before the text; "" for none
    choices: int = 1  # number of texts to generate
    # What `return_...` asks for: mostly names of outputs; `prompt` stands for the prompt's text, and for its log
    # probabilities if the request has the parameter for them.
    wanted: FrozenSet[str] = frozenset()
    single_call: bool = False  # whether an answer has at most one tool call; the model may write more
    constraint: Optional[constraints.Constraint] = None  # what the response must be; None for any text


@dataclass(frozen=True)
class TextRequest:
    """A request for text: for the engine, and for its response sink."""

    generation: Generation
    options: ResponseOptions


def read_request(
    request: Any, request_id: str, rules: constraints.ConstraintRules, paths: Sequence[str]
) -> Union[TextRequest, EmbeddingRequest, RankRequest, questions.Question, PathRequest]:
    """The request in the input tensors of *request*; *request_id* is unique among the running requests."""
    inputs = Inputs(request)
    if (text := inputs.text("embedding_request")) is not None:
        return _embedding(text, request_id, counts=bool(inputs.flag("return_num_input_tokens")))
    if (text := inputs.text("rerank_request")) is not None:
        return _ranking(text, request_id, counts=bool(inputs.flag("return_num_input_tokens")))
    if (text := inputs.text("tokenizer_request")) is not None:
        return questions.read_tokenizer_request(text, rules)
    if (text := inputs.text("engine_request")) is not None:
        return questions.read_engine_request(text)
    if parts := inputs.texts(PATH_REQUEST):
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
    stream, wanted = bool(inputs.flag("stream")), inputs.wanted()
    options = ResponseOptions(
        stream=stream,
        echo=_echo(inputs, text, is_chat=conversation is not None, is_text=token_ids is None),
        choices=parameters.get("n", 1),
        wanted=wanted,
        single_call=conversation is not None and conversation.get("parallel_tool_calls") is False,
        constraint=constraint,
    )
    generation = Generation(
        request_id=request_id,
        prompt=text if token_ids is None else token_ids,
        chat=conversation,
        sampling=parameters,
        lora=lora,
        images=_images(inputs),
        wants_logprobs=bool({"logprobs", "cumulative_logprob"} & {*wanted, *parameters}),
        wants_counts=stream and bool({"num_input_tokens", "num_output_tokens"} & wanted),
        is_stream=stream,
        wants_prompt="prompt" in wanted,
        wants_stop="stop_reason" in wanted,
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


def _echo(inputs: Inputs, prompt: str, *, is_chat: bool, is_text: bool) -> str:
    """The prompt if it is to be repeated before the text, which is the default of a single response to a text."""
    is_single = not inputs.flag("stream")
    exclude = inputs.flag("exclude_input_in_output")
    if exclude or (exclude is None and not (is_single and is_text and not is_chat)):
        return ""
    if not is_single:
        raise CallerError("When streaming, `exclude_input_in_output` = False is not allowed.")
    if is_chat:
        raise CallerError("With `messages`, `exclude_input_in_output` = False is not allowed.")
    if not is_text:
        raise CallerError("With `prompt_token_ids`, `exclude_input_in_output` = False is not allowed.")
    return prompt


def _images(inputs: Inputs) -> List[bytes]:
    images = []
    for number, encoded in enumerate(inputs.texts("image")):
        if not encoded:
            continue
        try:
            images.append(base64.b64decode(encoded, validate=True))
        except ValueError:
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
