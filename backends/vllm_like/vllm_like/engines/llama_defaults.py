"""Settings of the engine xllamacpp, their defaults and values, in a module that does not need the engine."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping

from vllm_like import values

MAX_MODEL_LEN = 4096
MAX_NUM_SEQS = 4
BATCHED_TOKENS = 512  # the most tokens of prompts in a batch by default: llama.cpp's own default of `n_ubatch`
LEAST_BATCH = 2  # llama.cpp warms up with so many tokens, and aborts if they do not fit into a batch
_LEAST_BATCHED_TOKENS = 16
_BATCH_SECONDS = 0.5
_OPERATIONS_PER_SECOND = 20e9
"""Of one thread, multiplications and additions: what a 135M model in Q4_1 reached on a busy core."""
OPTIONS: Mapping[str, Any] = {
    "n_threads": None,
    "n_threads_batch": None,
    "poll": 0,
    "n_gpu_layers": None,
    "flash_attn": "auto",
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "kv_unified": False,
    "cache_ram_mib": 0,
    "warmup": True,
    "verbosity": 0,
    "rope_freq_base": None,
    "rope_freq_scale": None,
    "rope_scaling": None,
    "yarn_orig_ctx": None,
    "split_mode": None,
    "main_gpu": None,
    "tensor_split": None,
    "mmproj": None,
    "draft_model": None,
    "draft_n_gpu_layers": None,
    "draft_min": None,
    "draft_max": None,
}  # `engine_options` and their defaults; None for the default of llama.cpp or of this backend

FLASH_ATTENTIONS = ("auto", "enabled", "disabled")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Those that llama.cpp's own server accepts; it has kernels for no other types of a cache."""
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
SPLIT_MODES = ("none", "layer", "row", "tensor")
_WORDS = {
    "flash_attn": FLASH_ATTENTIONS,
    "cache_type_k": CACHE_TYPES,
    "cache_type_v": CACHE_TYPES,
    "rope_scaling": ROPE_SCALINGS,
    "split_mode": SPLIT_MODES,
}
_NUMBERS = ("rope_freq_base", "rope_freq_scale")
MAX_SEQS = 256  # limit of llama.cpp (LLAMA_MAX_SEQ): it does not load a model with more sequences
_MAX_TOKENS = (1 << 31) - 1
_CACHE_BYTES = 2  # bytes of a number of the cache, whose type is f16 by default
_LEAST = {
    "n_threads": 1,
    "n_threads_batch": 1,
    "poll": 0,
    "n_gpu_layers": -2,  # all; -1 leaves the number to llama.cpp
    "cache_ram_mib": -1,  # without a limit
    "verbosity": -1,
    "yarn_orig_ctx": 1,
    "main_gpu": 0,
    "draft_n_gpu_layers": -2,
    "draft_min": 0,
    "draft_max": 1,
}
_MAX_POLL = 100


def option(given: Mapping[str, Any], key: str) -> Any:
    """The value of one of `engine_options`, or its default; `ValueError` if it is invalid."""
    default = OPTIONS[key]
    if isinstance(default, bool):
        return values.flag(given, key, values.OPTIONS, default=default)
    if key in _LEAST:
        number = values.integer(given, key, values.OPTIONS, least=_LEAST[key])
        if key == "poll" and number is not None and number > _MAX_POLL:
            raise ValueError(f"'poll' in {values.OPTIONS} must be an integer from 0 to {_MAX_POLL}, not {number}")
        return default if number is None else number
    if key in _WORDS:
        return values.choice(given, key, _WORDS[key], values.OPTIONS) or default
    value = given.get(key)
    if value is None:
        return default
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise ValueError(f"'{key}' in {values.OPTIONS} must be a number above 0, not {json.dumps(value)}")
        return float(value)
    if key == "tensor_split":
        if not isinstance(value, list) or not value or not all(_is_share(share) for share in value):
            raise ValueError(
                f"'{key}' in {values.OPTIONS} must be a list of numbers of 0 or more, not {json.dumps(value)}"
            )
        return [float(share) for share in value]
    if not isinstance(value, str) or not value:  # draft_model, mmproj
        raise ValueError(f"'{key}' in {values.OPTIONS} must be the name of a GGUF file, not {json.dumps(value)}")
    return value


def _is_share(value: Any) -> bool:
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
