"""What llama.cpp is asked: vLLM's sampling parameters by its names, with vLLM's defaults, which differ from its own."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from vllm_like.engines import llama_schema
from vllm_like.engines.base import CallerError, Generation

_LONG_PROMPT = 2000
"""Characters from which on it reports its progress in reading, so that a request can be cancelled meanwhile."""

_NO_LIMIT = -1
_SAME: Mapping[str, Any] = {
    "n": 1,
    "max_tokens": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": False,
    "stop": [],
}
_ELSEWHERE = frozenset(
    ("repetition_penalty", "top_k", "seed", "logprobs", "structured_outputs", "logit_bias", "best_of", "detokenize")
)
_NEUTRAL: Mapping[str, Any] = {
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "stop_token_ids": [],
    "bad_words": [],
    "use_beam_search": False,
    "early_stopping": False,
    "length_penalty": 1.0,
}
"""What it cannot do, with the values that ask for nothing."""

_STRUCTURE_DETAILS = frozenset(
    ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "backend", "disable_fallback")
)
"""Matters of how vLLM follows a structure."""


def body(generation: Generation, seed: Optional[int], max_logprobs: int) -> Dict[str, Any]:
    """The body of a request to llama.cpp.

    Args:
        generation: What was asked of us.
        seed: For requests that name none.
        max_logprobs: The most alternatives a request may ask for.

    Raises:
        CallerError: If llama.cpp cannot do that.
    """
    given = generation.sampling
    _refuse(generation)
    made: Dict[str, Any] = {name: given.get(name, default) for name, default in _SAME.items()}
    if made["max_tokens"] is None:
        made["max_tokens"] = _NO_LIMIT
    made["stream"] = True
    made["repeat_penalty"] = given.get("repetition_penalty", 1.0)
    made["top_k"] = max(0, given.get("top_k", 0))
    # All others off, whatever their defaults become.
    made["samplers"] = ["penalties", "top_k", "top_p", "min_p", "temperature"]
    seed = given.get("seed", seed)
    if seed is not None:
        made["seed"] = seed & 0xFFFFFFFF
    if "logit_bias" in given:
        made["logit_bias"] = [[token, bias] for token, bias in given["logit_bias"].items()]
    if generation.wants_counts:
        made["timings_per_token"] = True
    _add_logprobs(made, generation, max_logprobs)
    if "structured_outputs" in given:
        _add_structure(made, given["structured_outputs"])
    if generation.chat is not None:
        made.update(generation.chat)
        length = sum(len(str(message.get("content"))) for message in generation.chat["messages"])
    else:
        made["prompt"] = generation.prompt
        length = len(generation.prompt)
    made["return_progress"] = length > _LONG_PROMPT
    return made


def _refuse(generation: Generation) -> None:
    given = generation.sampling
    if generation.images:
        raise CallerError("the engine xllamacpp takes no 'image'")
    if given.get("best_of", 1) not in (1, given.get("n", 1)):
        raise CallerError("the engine xllamacpp does not know the sampling parameter 'best_of'")
    for name, value in given.items():
        if name in _SAME or name in _ELSEWHERE or (name in _NEUTRAL and value == _NEUTRAL[name]):
            continue
        raise CallerError(f"the engine xllamacpp does not know the sampling parameter '{name}'")


def _add_logprobs(made: Dict[str, Any], generation: Generation, most: int) -> None:
    count = generation.sampling.get("logprobs")
    if count is not None and count > most:
        raise CallerError(f"Requested sample logprobs of {count}, which is greater than max allowed: {most}")
    if not generation.wants_logprobs:
        return
    # With none asked for, the token that was taken is wanted all the same: one is the least it gives.
    if generation.chat is None:
        made["logprobs"] = max(1, count or 0)
    else:
        made["logprobs"] = True
        made["top_logprobs"] = max(1, count or 0)


def _add_structure(made: Dict[str, Any], given: Mapping[str, Any]) -> None:
    wanted = {key: value for key, value in given.items() if value not in (None, False)}
    rest = {key: wanted.pop(key) for key in ("json", "json_object", "choice", "grammar") if key in wanted}
    if len(rest) != 1 or set(wanted) - _STRUCTURE_DETAILS:
        names = ", ".join(f"'{name}'" for name in given) or "nothing"
        raise CallerError(
            "'structured_outputs' must have one of 'json', 'json_object', 'choice' and 'grammar' for the engine "
            f"xllamacpp; it has {names}"
        )
    kind, value = next(iter(rest.items()))
    if kind == "grammar":
        made["grammar"] = value
    elif kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise CallerError("'choice' must be a list of strings")
        made["grammar"] = "root ::= " + " | ".join(json.dumps(item, ensure_ascii=False) for item in value)
    else:
        schema = {"type": "object"} if kind == "json_object" else _schema(value)
        llama_schema.check(schema)
        made["json_schema"] = schema


def _schema(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise CallerError(f"the JSON schema is no JSON: {error}") from None
