"""Settings of the engine xllamacpp, their defaults and values, in a module that does not need the engine."""

from __future__ import annotations

from typing import Any, Mapping

from vllm_like import values

MAX_MODEL_LEN = 4096
MAX_NUM_SEQS = 4
BATCHED_TOKENS = 512
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
}
"""`engine_options` and their defaults; None for the default of llama.cpp or of this backend."""

FLASH_ATTENTIONS = ("auto", "enabled", "disabled")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Those that llama.cpp's own server accepts; it has kernels for no other types of a cache."""
_LEAST = {
    "n_threads": 1,
    "n_threads_batch": 1,
    "poll": 0,
    "n_gpu_layers": -2,  # all; -1 leaves the number to llama.cpp
    "cache_ram_mib": -1,  # without a limit
    "verbosity": -1,
}
_MAX_POLL = 100


def option(given: Mapping[str, Any], key: str) -> Any:
    """The value of one of `engine_options`, or its default.

    Raises:
        ValueError: If the value is invalid.
    """
    default = OPTIONS[key]
    if isinstance(default, bool):
        return values.flag(given, key, values.OPTIONS, default=default)
    if key in _LEAST:
        number = values.integer(given, key, values.OPTIONS, least=_LEAST[key])
        if key == "poll" and number is not None and number > _MAX_POLL:
            raise ValueError(f"'poll' in {values.OPTIONS} must be an integer from 0 to {_MAX_POLL}, not {number}")
        return default if number is None else number
    words = FLASH_ATTENTIONS if key == "flash_attn" else CACHE_TYPES
    return values.choice(given, key, words, values.OPTIONS) or default
