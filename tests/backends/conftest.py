"""Packages of the backends for saved models, where guests find them."""

from __future__ import annotations

import sys
from pathlib import Path

BACKENDS = Path(__file__).parents[2] / "backends"
for _name in ("saved_models", "fil", "mlflow", "onnxruntime", "sklearn", "transformers"):
    if str(BACKENDS / _name) not in sys.path:
        sys.path.append(str(BACKENDS / _name))
