"""`/tokenize`, `/detokenize` and `/tokenizer_info` of vLLM's server, for models with an input `tokenizer_request`.

As there, requests need not name the model where only one has a tokenizer: lm-eval names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from naiad.protocol.inference import OutputTensor
from naiad_llm.openai.errors import SERVER_ERROR, ApiError
from naiad_llm.openai.model_inputs import TOKENIZER, ModelRequest, named_model
from naiad_llm.openai.requests import (
    ARRAY,
    BOOLEAN,
    OBJECT,
    TEXT,
    FieldRule,
    are_token_ids,
    check_messages,
    to_json,
    validate_fields,
)
from naiad_llm.openai.single_response import MakeBody
from naiad_llm.openai.vllm_tensors import strings

_TEXT_OUTPUT = "text_output"
_CONVERSATION = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
_TOKENIZE: dict[str, FieldRule] = {
    **dict.fromkeys(("model", "prompt"), TEXT),
    **dict.fromkeys(("messages", "tools"), ARRAY),
    **dict.fromkeys(("add_special_tokens", "return_token_strs"), BOOLEAN),
    **dict.fromkeys(("add_generation_prompt", "continue_final_message"), BOOLEAN),
    "chat_template_kwargs": OBJECT,
}
_DETOKENIZE: dict[str, FieldRule] = {"model": TEXT, "tokens": ARRAY}


def read_tokenize(document: Mapping[str, Any]) -> ModelRequest:
    """The request in the body of `POST /tokenize`."""
    given = validate_fields(
        document, _TOKENIZE, (), {"chat_template": "prompts are rendered by the model's own template"}
    )
    if ("prompt" in given) == ("messages" in given):
        raise ApiError("you must provide either a `prompt` or `messages`", param="prompt")
    options: dict[str, Any] = {
        name: given[name] for name in ("add_special_tokens", "return_token_strs") if name in given
    }
    if "prompt" in given:
        return _request(given.get("model", ""), {"prompt": given["prompt"], **options})
    conversation = {"messages": check_messages(given["messages"], "messages")}
    conversation.update({name: given[name] for name in _CONVERSATION if name in given})
    return _request(given.get("model", ""), {"chat": conversation, **options})


def read_detokenize(document: Mapping[str, Any]) -> ModelRequest:
    """The request in the body of `POST /detokenize`."""
    given = validate_fields(document, _DETOKENIZE, ("tokens",))
    if given["tokens"] and not are_token_ids(given["tokens"]):
        raise ApiError("`tokens` must be an array of token ids", param="tokens")
    return _request(given.get("model", ""), {"tokens": given["tokens"]})


def counting_request(model: str, conversation: str, make_body: MakeBody) -> ModelRequest:
    """A request for the number of tokens of a conversation, which is JSON."""
    return _request(model, {"chat": orjson.Fragment(conversation), "return_tokens": False}, make_body)


def read_info(query: bytes) -> ModelRequest:
    """A request for what a client must know of a tokenizer to use it: its special tokens and the chat template."""
    return _request(named_model(query), {"info": True})


def _request(model: str, document: Mapping[str, Any], make_body: MakeBody | None = None) -> ModelRequest:
    return ModelRequest(TOKENIZER, model, to_json(document), make_body or tokenizer_body)


def tokenizer_body(outputs: Mapping[str, OutputTensor]) -> bytes:
    """The JSON that the model returned. It is not parsed: it may have a million tokens."""
    texts = strings(outputs.get(_TEXT_OUTPUT))
    if len(texts) != 1:
        raise ApiError(f"The model returned no single string in '{_TEXT_OUTPUT}'", status=SERVER_ERROR)
    return texts[0].encode()


def count_body(outputs: Mapping[str, OutputTensor]) -> bytes:
    """The response to a `counting_request`, in Anthropic's form."""
    return orjson.dumps({"input_tokens": _count(outputs)})


def input_tokens_body(outputs: Mapping[str, OutputTensor]) -> bytes:
    """The response to a `counting_request`, in the form of OpenAI's Responses."""
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": _count(outputs)})


def _count(outputs: Mapping[str, OutputTensor]) -> int:
    try:
        return int(orjson.loads(tokenizer_body(outputs))["count"])
    except (ValueError, KeyError, TypeError) as problem:
        raise ApiError(f"The model returned no count of tokens: {problem!r}", status=SERVER_ERROR) from None
