"""The engines by name; each is imported when a model uses it."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from vllm_like.engines.base import Engine

NAMES = ("xllamacpp", "vllm", "onnx")


def start(settings: Any, log: Callable[[str], None], on_dead: Callable[[str], None]) -> Engine:
    """Load the model of *settings* with its engine; *on_dead* is called with the reason if the engine fails later."""
    module = importlib.import_module(f"vllm_like.engines.{settings.engine}_engine")
    engine: Engine = module.start(settings, log, on_dead)
    return engine
