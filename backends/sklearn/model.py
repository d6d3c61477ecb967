# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "pandas", "scikit-learn", "skops"]
# ///
"""The backend `sklearn`: serves estimators of scikit-learn. See the README beside this file."""

import sys
from pathlib import Path
from typing import Any, Dict

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_sklearn.estimator import Estimator, interface_of
from naiad_sklearn.files import load
from saved_models.execution import BatchRunner, SavedModelBackend
from saved_models.interface import complete_from
from saved_models.settings import read


class TritonPythonModel(SavedModelBackend):
    """One instance of a model, with an estimator of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the features and what the estimator gives, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: interface_of(load(settings), settings))

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        self._runner = BatchRunner(settings, Estimator(load(settings), settings).run)
