"""Settings of the engine xllamacpp and their defaults, in a module that does not need the engine."""

from __future__ import annotations

from typing import Any, Mapping

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
