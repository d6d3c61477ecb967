# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "pandas", "scikit-learn", "skops"]
# ///
"""The backend `sklearn`: serves estimators of scikit-learn. See the README beside this file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_sklearn.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
