# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "pillow", "torch==2.13.*", "transformers"]
# ///
"""The backend `transformers`: serves pipelines of Hugging Face's transformers. See the README beside this file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_transformers.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
