"""The backend `mlflow`: serves models that MLflow saved. See the README beside this file."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

# A server reports nothing about its models to others unless its operator says so.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from naiad_mlflow.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
