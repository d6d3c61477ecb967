"""Sampling parameters with vLLM's names: validated, and converted to their types."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple

from vllm_like import json_text, keys
from vllm_like.engines.base import CallerError

# Python also reads underscores, spaces and the digits of all scripts.
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,400}(\.[0-9]{0,400})?([eE][+-]?[0-9]{1,4})?")
_TRUE = {"true": True, "1": True, "false": False, "0": False}


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        return _TRUE[value.lower()]
    if isinstance(value, (bool, int)):
        return bool(value)
    raise ValueError


def _decimal(value: Any) -> float:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ValueError
    number = int(value)
    if isinstance(value, float) and number != value:
        raise ValueError
    return number


def _parsed(value: Any) -> Any:
    """The value; parsed if it is a string, since request parameters can hold lists and objects as JSON only."""
    return json.loads(value) if isinstance(value, str) else value


def _strings(value: Any) -> List[str]:
    if isinstance(value, str):
        try:
            listed = json.loads(value)  # a request parameter cannot be a list
        except ValueError:
            listed = None
        value = listed if isinstance(listed, list) else [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError
    return value


def _integers(value: Any) -> List[int]:
    value = _parsed(value)
    if not isinstance(value, list):
        raise ValueError
    return [_integer(item) for item in value]


def _biases(value: Any) -> Dict[int, float]:
    return {_integer(token): _decimal(bias) for token, bias in _parsed(value).items()}


def _object(value: Any) -> Dict[str, Any]:
    value = _parsed(value)
    if not isinstance(value, dict):
        raise ValueError
    return value


_KINDS: Mapping[str, Tuple[Callable[[Any], Any], Tuple[str, ...]]] = {
    "an integer": (
        _integer,
        ("n", "best_of", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
         "truncate_prompt_tokens", "thinking_token_budget", "stream_interval", "priority", "data_parallel_rank"),
    ),
    "a number": (
        _decimal,
        ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p",
         "length_penalty"),
    ),
    "true or false": (
        _boolean,
        ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens",
         "spaces_between_special_tokens", "use_beam_search", "early_stopping",
         "skip_reading_prefix_cache"),
    ),
    "a string or a list of strings": (_strings, ("stop", "bad_words")),
    "a list of integers": (_integers, ("stop_token_ids", "allowed_token_ids")),
    "an object of numbers by token": (_biases, ("logit_bias",)),
    "an object": (_object, ("structured_outputs", "guided_decoding", "extra_args", "kv_transfer_params")),
    "a string": (str, ("lora_name", "cache_salt")),
}  # fmt: skip
_CASTS = {name: (cast, kind) for kind, (cast, names) in _KINDS.items() for name in names}

NOT_SAMPLING = frozenset(("id", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"))
"""Request parameters of the inference protocol, which are not sampling parameters."""
NOT_SAMPLING_IN_REQUESTS = NOT_SAMPLING | {"priority"}
"""As a request parameter, `priority` is that of the inference protocol; in the input `sampling_parameters`, vLLM's."""

RANGES: Mapping[str, Tuple[float, float]] = {
    "n": (1, 128),
    "temperature": (0, float("inf")),
    "top_p": (0, 1),
    "top_k": (-1, float("inf")),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_tokens": (1, float("inf")),
    "min_tokens": (0, float("inf")),
    "logprobs": (0, float("inf")),
    "data_parallel_rank": (0, float("inf")),
}


def parse(text: str, where: str, dropped: Iterable[str] = NOT_SAMPLING) -> Dict[str, Any]:
    """The parameters in a JSON object, converted to their types, but those *dropped*; *where* is for errors.

    null means absent, except for `max_tokens`, where it means no limit.
    """
    given = json_text.parse(text, where) if text else {}
    if not isinstance(given, dict):
        raise CallerError(f"{where} must be a JSON object")
    return cast(keys.without(given, dropped), where)


def cast(given: Mapping[str, Any], where: str) -> Dict[str, Any]:
    """The parameters *given*, each converted to its type; `CallerError` if one is unknown or invalid."""
    json_text.reject_unknown(given, _CASTS, where, "sampling parameter")
    parameters = {}
    for name, value in given.items():
        if value is None:
            if name == "max_tokens":  # null: as many as fit into the context
                parameters[name] = None
            continue
        caster, kind = _CASTS[name]
        try:
            parameters[name] = caster(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise CallerError(f"sampling parameter '{name}' must be {kind}, not {json.dumps(value)}") from None
        _check_range(name, parameters[name])
    if "" in parameters.get("stop", ()):
        raise CallerError("sampling parameter 'stop' cannot contain an empty string")
    if "guided_decoding" in parameters:  # its name in earlier releases of vLLM
        parameters.setdefault("structured_outputs", parameters.pop("guided_decoding"))
    return parameters


def _check_range(name: str, value: Any) -> None:
    low, high = RANGES.get(name, (None, None))
    if low is None or high is None or low <= value <= high:
        return
    limit = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
    raise CallerError(f"sampling parameter '{name}' must be {limit}, got {value}")
