"""Adapters (LoRA) of a model, which clients name together with it.

What names them lies beside the model's weights, as upstream's vLLM backend has it: `multi_lora.json`, in force where
`model.json` has `"enable_lora": true` (VLLM:src/model.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["adapter_names"]

_SETTINGS, _ADAPTERS = "model.json", "multi_lora.json"


def adapter_names(version: Path) -> tuple[str, ...]:
    """Names of the adapters in a version's folder, in their order there; none for a model without. Reads files."""
    settings, adapters = (_object(version / name) for name in (_SETTINGS, _ADAPTERS))
    return tuple(adapters) if str(settings.get("enable_lora")).lower() == "true" else ()


def _object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none, of which the model itself has complained."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
