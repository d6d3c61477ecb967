"""Values of `model.json`, checked: a value of another type or outside its range is an error, not a default."""

from __future__ import annotations

import difflib
import json
from functools import partial
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

FILE = "model.json"
OPTIONS = f"'engine_options' of {FILE}"


def flag(given: Mapping[str, Any], key: str, where: str = FILE, *, default: bool = False) -> bool:
    """The value of *key*, which models for Triton's vLLM backend write as `"true"`; `ValueError` if it is no flag."""
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    text = value.lower() if isinstance(value, str) else ""
    if text not in ("true", "false"):
        raise ValueError(f"'{key}' in {where} must be true or false, not {json.dumps(value)}")
    return text == "true"


def integer(given: Mapping[str, Any], key: str, where: str = FILE, *, least: Optional[int] = None) -> Optional[int]:
    """The value of *key*, None if it is missing or null; `ValueError` unless it is an integer of *least* or more."""
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        rule = "" if least is None else f" of {least} or more"
        raise ValueError(f"'{key}' in {where} must be an integer{rule}, not {json.dumps(value)}")
    return value


def choice(given: Mapping[str, Any], key: str, allowed: Sequence[str], where: str = FILE) -> str:
    """The value of *key* in lower case, empty if it is missing or null; `ValueError` unless it is *allowed*."""
    value = given.get(key)
    if value is None:
        return ""
    word = value.lower() if isinstance(value, str) else ""
    if word not in allowed:
        near = difflib.get_close_matches(word, allowed, 1, 0.6)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise ValueError(f"'{key}' in {where} is {json.dumps(value)}; it must be one of {', '.join(allowed)}{hint}")
    return word


POOLINGS = {
    "xllamacpp": ("mean", "cls", "last", "rank", "none", "unspecified"),
    "onnx": ("mean", "cls"),
}  # the `pooling_type`s of engines
WORDS = {
    "runner": ("auto", "generate", "pooling", "draft"),
    "convert": ("auto", "none", "embed", "classify", "reward", "mm_encoder_only"),
    "task": (
        *("auto", "generate", "embedding", "embed", "classify", "score", "reward", "transcription", "draft"),
        *("pooling", "none", "mm_encoder_only"),
    ),
}  # the words of keys in the releases of vLLM up to 0.32
_FLAGS = ("enable_lora", "disable_log_stats")
_FLAGS_OF_VLLM = (*_FLAGS, "enforce_eager")
_FLAGS_OF_OTHERS = (*_FLAGS, "enable_prefix_caching")


def check(arguments: Mapping[str, Any], engine: str) -> None:
    """Check the keys whose values have the same meaning for every engine, and those that only naiad would read.

    The text of the `ValueError` has a sentence for each invalid one.
    """
    problems = []
    flags = _FLAGS_OF_VLLM if engine == "vllm" else _FLAGS_OF_OTHERS
    checks: List[Callable[[], object]] = [partial(flag, arguments, key) for key in flags]
    checks.append(partial(integer, arguments, "seed"))
    if engine != "vllm":  # the installed release knows its own words
        checks += [partial(choice, arguments, key, words) for key, words in WORDS.items()]
    for read in checks:
        try:
            read()
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))


def pooling(arguments: Mapping[str, Any], engine: str) -> Tuple[str, bool]:
    """How the vectors of tokens become one, `mean` by default, and whether that is normalized, from `pooler_config`."""
    config = arguments.get("pooler_config") or {}
    if not isinstance(config, dict):
        raise ValueError(f"'pooler_config' in {FILE} must be an object, not {json.dumps(config)}")
    kinds = [choice(config, key, POOLINGS[engine]) for key in ("pooling_type", "seq_pooling_type")]
    normalizes = flag(config, "use_activation", default=True)
    return next(filter(None, kinds), "mean"), flag(config, "normalize", default=normalizes)
