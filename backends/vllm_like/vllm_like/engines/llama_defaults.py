"""Settings of the engine xllamacpp, their defaults and values, in a module that does not need the engine."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Tuple

from vllm_like import values

MAX_MODEL_LEN = 4096
MAX_NUM_SEQS = 4
BATCHED_TOKENS = 512  # the most tokens of prompts in a batch by default: llama.cpp's own default of `n_ubatch`
LEAST_BATCH = 2  # llama.cpp warms up with so many tokens, and aborts if they do not fit into a batch
_LEAST_BATCHED_TOKENS = 16
_BATCH_SECONDS = 0.5
_OPERATIONS_PER_SECOND = 20e9
"""Of one thread, multiplications and additions: what a 135M model in Q4_1 reached on a busy core."""
_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Those that llama.cpp's own server accepts; it has kernels for no other types of a cache."""
OPTIONS: Mapping[str, Tuple[Any, Any]] = {
    "n_threads": (None, 1),
    "n_threads_batch": (None, 1),
    "poll": (0, 0),
    "n_gpu_layers": (None, -2),  # all; -1 leaves the number to llama.cpp
    "flash_attn": ("auto", ("auto", "enabled", "disabled")),
    "cache_type_k": ("f16", _CACHE_TYPES),
    "cache_type_v": ("f16", _CACHE_TYPES),
    "kv_unified": (False, bool),
    "cache_ram_mib": (0, -1),  # without a limit
    "warmup": (True, bool),
    "verbosity": (0, -1),
    "rope_freq_base": (None, float),
    "rope_freq_scale": (None, float),
    "rope_scaling": (None, ("none", "linear", "yarn", "longrope")),
    "yarn_orig_ctx": (None, 1),
    "split_mode": (None, ("none", "layer", "row", "tensor")),
    "main_gpu": (None, 0),
    "tensor_split": (None, list),
    "mmproj": (None, str),
    "draft_model": (None, str),
    "draft_n_gpu_layers": (None, -2),
    "draft_min": (None, 0),
    "draft_max": (None, 1),
}  # the default of each of `engine_options`, None for that of llama.cpp or of this backend; and its words, its type, or
# the least integer
MAX_SEQS = 256  # limit of llama.cpp (LLAMA_MAX_SEQ): it does not load a model with more sequences
_MAX_TOKENS = (1 << 31) - 1
_CACHE_BYTES = 2  # bytes of a number of the cache, whose type is f16 by default
_MAX_POLL = 100


def option(given: Mapping[str, Any], key: str) -> Any:
    """The value of one of `engine_options`, or its default; `ValueError` if it is invalid."""
    default, kind = OPTIONS[key]
    if kind is bool:
        return values.flag(given, key, values.OPTIONS, default=default)
    if isinstance(kind, int):
        number = values.integer(given, key, values.OPTIONS, least=kind)
        if key == "poll" and number is not None and number > _MAX_POLL:
            raise ValueError(f"'poll' in {values.OPTIONS} must be an integer from 0 to {_MAX_POLL}, not {number}")
        return default if number is None else number
    if isinstance(kind, tuple):
        return values.choice(given, key, kind, values.OPTIONS) or default
    value = given.get(key)
    if value is None:
        return default
    if kind is float and _is_number(value) and value > 0:
        return float(value)
    if kind is list and isinstance(value, list) and value and all(_is_number(share) for share in value):
        return [float(share) for share in value]
    if kind is str and isinstance(value, str) and value:
        return value
    rule = {float: "a number above 0", list: "a list of numbers of 0 or more", str: "the name of a GGUF file"}[kind]
    raise ValueError(f"'{key}' in {values.OPTIONS} must be {rule}, not {json.dumps(value)}")


def _is_number(value: Any) -> bool:
    """Whether a value is a number of 0 or more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def batched_tokens(weights: int, threads: int, *, has_gpu: bool) -> int:
    """How many tokens of prompts a CPU reads in about half a second; a GPU reads as many as there can be.

    A request cannot be cancelled in a batch, and no other one gets a token meanwhile. *weights* is 0 if unknown.
    """
    if has_gpu or not weights:
        return BATCHED_TOKENS
    fast = int(_BATCH_SECONDS * _OPERATIONS_PER_SECOND * threads / (2 * weights))
    return max(_LEAST_BATCHED_TOKENS, min(fast, BATCHED_TOKENS))


def check_sizes(length: int, seqs: int) -> None:
    """`ValueError` if llama.cpp cannot have so many requests, or tokens in its cache."""
    if seqs > MAX_SEQS:
        raise ValueError(
            f"'max_num_seqs' in {values.FILE} is {seqs}, and llama.cpp runs at most {MAX_SEQS} requests at a time; set "
            f"it to {MAX_SEQS} or less, further requests are queued"
        )
    if length * seqs > _MAX_TOKENS:
        raise ValueError(
            f"cannot allocate a cache of {length} x {seqs} tokens ('max_model_len', 'max_num_seqs' in {values.FILE}): "
            f"llama.cpp has at most {_MAX_TOKENS} tokens; lower one of them"
        )


def cache_bytes(length: int, seqs: int, numbers: int) -> int:
    """The size of the cache for *seqs* requests of *length* tokens, each of which has *numbers* numbers in it."""
    return length * seqs * numbers * _CACHE_BYTES


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
