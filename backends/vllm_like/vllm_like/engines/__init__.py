"""Engines by name; each is imported when a model needs it."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from vllm_like.engines.base import Engine

NAMES = ("xllamacpp", "vllm", "onnx")


def start(settings: Any, log: Callable[[str], None], died: Callable[[str], None]) -> Engine:
    """Load the model of *settings* with its engine; *died* is called when that breaks down later."""
    module = importlib.import_module(f"vllm_like.engines.{settings.engine}_engine")
    engine: Engine = module.start(settings, log, died)
    return engine
