# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "onnxruntime"]
# ///
"""The backend `onnxruntime`: serves ONNX files. See the README beside this file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_onnxruntime.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
