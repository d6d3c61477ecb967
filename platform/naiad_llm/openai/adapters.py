"""Names of a model's LoRA adapters, which clients append to the model's name.

The files are those of Triton's vLLM backend: `multi_lora.json` beside the model's weights names the adapters, and takes
effect if `model.json` has `"enable_lora": true` (VLLM:src/model.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["adapter_names"]

_SETTINGS, _ADAPTERS = "model.json", "multi_lora.json"


def adapter_names(version: Path) -> tuple[str, ...]:
    """Names of a version's adapters, in the order of the file; empty for none. Reads files: call it on a thread."""
    settings, adapters = (_read_object(version / name) for name in (_SETTINGS, _ADAPTERS))
    return tuple(adapters) if str(settings.get("enable_lora")).lower() == "true" else ()


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or malformed, which the model reports when it loads."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
