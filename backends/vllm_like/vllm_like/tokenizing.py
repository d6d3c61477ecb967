"""Requests to a model's tokenizer, in the form of vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

import json
from typing import Any, Dict

from vllm_like import chat, json_text
from vllm_like.constraints import ConstraintRules
from vllm_like.engines.base import CallerError, Engine

_SUBJECTS = ("prompt", "chat", "tokens", "info")
_KEYS = (*_SUBJECTS, "add_special_tokens", "return_token_strs", "return_tokens")


def read_request(text: str, rules: ConstraintRules) -> Dict[str, Any]:
    """The request in the input `tokenizer_request`."""
    given = json_text.parse(text, "'tokenizer_request'")
    if not isinstance(given, dict) or len(set(_SUBJECTS) & set(given)) != 1:
        raise CallerError("'tokenizer_request' must be a JSON object with one of 'prompt', 'chat', 'tokens' and 'info'")
    json_text.reject_unknown(given, _KEYS, "'tokenizer_request'")
    if not isinstance(given.get("prompt", ""), str):
        raise CallerError("'prompt' must be a string")
    tokens = given.get("tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise CallerError("'tokens' must be a list of token ids")
    if "chat" in given:
        given["chat"], _ = rules.apply(chat.parse(json.dumps(given["chat"])), {})
    return given


def respond(engine: Engine, given: Dict[str, Any]) -> Dict[str, Any]:
    """The response to a request that was read; blocks."""
    if "info" in given:
        return {**engine.tokenizer_info(), "model_max_length": engine.max_model_len}
    if "tokens" in given:
        return {"prompt": engine.decode(given["tokens"])}
    is_chat = "chat" in given
    text = engine.render(given["chat"]) if is_chat else given["prompt"]
    adds_special = given.get("add_special_tokens")
    if adds_special is None:
        adds_special = engine.chat_adds_special if is_chat else True
    tokens, strings = engine.encode(text, adds_special=adds_special)
    response: Dict[str, Any] = {"count": len(tokens), "max_model_len": engine.max_model_len}
    if given.get("return_tokens", True):
        response["tokens"] = tokens
        response["token_strs"] = strings if given.get("return_token_strs") else None
    return response
