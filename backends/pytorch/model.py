# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "torch==2.13.*"]
# ///
"""The backend `pytorch`: serves TorchScript, packages of torch.export, and modules. See the README beside this file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_pytorch.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
