"""Questions to a model's engine: about its tokenizer, as vLLM's `/tokenize` and `/detokenize`, and about its sleep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Dict

from vllm_like import chat, json_text
from vllm_like.constraints import ConstraintRules
from vllm_like.engines.base import CallerError, Engine

_SUBJECTS = ("prompt", "chat", "tokens", "info")
_KEYS = (*_SUBJECTS, "add_special_tokens", "return_token_strs", "return_tokens")
_FORMS = (
    '\'engine_request\' must be one of {"sleep": {"level": 1, "mode": "abort"}}, '
    '{"wake_up": {"tags": [...]}} and {"is_sleeping": true}'
)
_LEVELS = (1, 2)
_MODES = ("abort", "wait", "keep")


@dataclass(frozen=True)
class Question:
    """A question to the engine, which *respond* answers with a JSON object; it blocks."""

    given: Dict[str, Any]
    respond: Callable[[Engine, Dict[str, Any]], Dict[str, Any]]


def read_tokenizer_request(text: str, rules: ConstraintRules) -> Question:
    """The question in the input `tokenizer_request`."""
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
    return Question(given, _tokenize)


def _tokenize(engine: Engine, given: Dict[str, Any]) -> Dict[str, Any]:
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


def read_engine_request(text: str) -> Question:
    """The question in the input `engine_request`: to sleep, to wake up, or whether the engine sleeps."""
    given = json_text.parse(text, "'engine_request'")
    if not isinstance(given, dict) or len(given) != 1:
        raise CallerError(_FORMS)
    (kind, options), *_ = given.items()
    if kind == "is_sleeping":
        return Question(given, _control)
    if kind not in {"sleep", "wake_up"} or not isinstance(options, dict):
        raise CallerError(_FORMS)
    if kind == "sleep" and (options.get("level", 1) not in _LEVELS or options.get("mode", "abort") not in _MODES):
        raise CallerError(f"{_FORMS}; 'level' is 1 or 2, and 'mode' one of {', '.join(_MODES)}")
    tags = options.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise CallerError(f"{_FORMS}; 'tags' is a list of strings")
    return Question(given, _control)


def _control(engine: Engine, given: Dict[str, Any]) -> Dict[str, Any]:
    if "sleep" in given:
        engine.sleep(given["sleep"].get("level", 1), given["sleep"].get("mode", "abort"))
    elif "wake_up" in given:
        engine.wake_up(given["wake_up"].get("tags"))
    return {"is_sleeping": engine.is_sleeping()}
