"""What the files of a language model tell clients: the names of its LoRA adapters, and the length of its context.

The files are those of Triton's vLLM backend: `multi_lora.json` beside the model's weights names the adapters, and takes
effect if `model.json` has `"enable_lora": true` (VLLM:src/model.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from naiad.core.foreign_json import read_json

__all__ = ["adapter_names", "context_length"]

_SETTINGS, _ADAPTERS = "model.json", "multi_lora.json"
_LENGTH = "max_model_len"
_LLAMA_SUFFIX, _LLAMA_LENGTH = ".gguf", 4096
"""Models of the engine xllamacpp, and their default of `max_model_len`."""


def adapter_names(version: Path) -> tuple[str, ...]:
    """Names of a version's adapters, in the order of the file; empty for none. Reads files: call it on a thread."""
    settings, adapters = (_read_object(version / name) for name in (_SETTINGS, _ADAPTERS))
    return tuple(adapters) if str(settings.get("enable_lora")).lower() == "true" else ()


def context_length(version: Path) -> int:
    """The number of tokens of prompt and output together; 0 if the files do not tell. Reads files."""
    settings = _read_object(version / _SETTINGS)
    given = settings.get(_LENGTH)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    model = settings.get("model")
    if not isinstance(model, str) or given is not None:
        return 0
    if model.lower().endswith(_LLAMA_SUFFIX):
        return _LLAMA_LENGTH
    trained = _read_object(version / model / "config.json").get("max_position_embeddings")
    return trained if isinstance(trained, int) else 0


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or malformed, which the model reports when it loads."""
    try:
        content = read_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
