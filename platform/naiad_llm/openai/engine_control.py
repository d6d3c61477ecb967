"""`/sleep`, `/wake_up` and `/is_sleeping`, as vLLM's server has them, for models with an input `engine_request`.

A sleeping model has freed its GPU's memory. Its process stays, so it wakes up faster than it loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from naiad.protocol.inference import OutputTensor
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.model_inputs import ENGINE, ModelRequest, named_model
from naiad_llm.openai.requests import to_json
from naiad_llm.openai.single_response import MakeBody
from naiad_llm.openai.tokenizer import tokenizer_body

_LEVELS = ("1", "2")
_MODES = ("abort", "wait", "keep")


def read_sleep(query: bytes) -> ModelRequest:
    """The request of `POST /sleep`."""
    given = parse_qs(query.decode("latin-1"))
    level = _choice(given, "level", _LEVELS)
    return _request(query, {"sleep": {"level": int(level), "mode": _choice(given, "mode", _MODES)}}, _no_body)


def read_wake_up(query: bytes) -> ModelRequest:
    """The request of `POST /wake_up`, for all that sleeps, or for what its parameters `tags` name."""
    return _request(query, {"wake_up": {"tags": parse_qs(query.decode("latin-1")).get("tags")}}, _no_body)


def read_is_sleeping(query: bytes) -> ModelRequest:
    """The request of `GET /is_sleeping`."""
    return _request(query, {"is_sleeping": True}, tokenizer_body)


def _no_body(outputs: Mapping[str, OutputTensor]) -> bytes:
    """The empty response to a command; raises `ApiError` unless the model has confirmed it."""
    tokenizer_body(outputs)
    return b""


def _request(query: bytes, document: dict[str, Any], make_body: MakeBody) -> ModelRequest:
    return ModelRequest(ENGINE, named_model(query), to_json(document), make_body)


def _choice(given: Mapping[str, list[str]], name: str, values: tuple[str, ...]) -> str:
    value = given.get(name, [values[0]])[-1]
    if value not in values:
        raise ApiError(f"`{name}` must be one of {', '.join(values)}, not {value!r}", param=name, code="invalid_value")
    return value
