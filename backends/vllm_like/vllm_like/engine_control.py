"""Requests to a model's engine, beside those to the model: sleep, wake up, and whether it sleeps."""

from __future__ import annotations

from typing import Any, Dict

from vllm_like import json_text
from vllm_like.engines.base import CallerError, Engine

_FORMS = (
    '\'engine_request\' must be one of {"sleep": {"level": 1, "mode": "abort"}}, '
    '{"wake_up": {"tags": [...]}} and {"is_sleeping": true}'
)
_LEVELS = (1, 2)
_MODES = ("abort", "wait", "keep")


def read_request(text: str) -> Dict[str, Any]:
    """The request in the input `engine_request`."""
    given = json_text.parse(text, "'engine_request'")
    if not isinstance(given, dict) or len(given) != 1:
        raise CallerError(_FORMS)
    (kind, options), *_ = given.items()
    if kind == "is_sleeping":
        return given
    if kind not in {"sleep", "wake_up"} or not isinstance(options, dict):
        raise CallerError(_FORMS)
    if kind == "sleep" and (options.get("level", 1) not in _LEVELS or options.get("mode", "abort") not in _MODES):
        raise CallerError(f"{_FORMS}; 'level' is 1 or 2, and 'mode' one of {', '.join(_MODES)}")
    tags = options.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise CallerError(f"{_FORMS}; 'tags' is a list of strings")
    return given


def respond(engine: Engine, given: Dict[str, Any]) -> Dict[str, Any]:
    """The response to a request that was read; blocks until the engine has obeyed."""
    if "sleep" in given:
        engine.sleep(given["sleep"].get("level", 1), given["sleep"].get("mode", "abort"))
    elif "wake_up" in given:
        engine.wake_up(given["wake_up"].get("tags"))
    return {"is_sleeping": engine.is_sleeping()}
