# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "treelite"]
# ///
"""The backend `fil`: serves forests of XGBoost, LightGBM and Treelite. See the README beside this file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_fil.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
