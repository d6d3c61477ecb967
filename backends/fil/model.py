# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "treelite"]
# ///
"""The backend `fil`: serves forests of XGBoost, LightGBM and Treelite. See the README beside this file."""

import sys
from pathlib import Path
from typing import Any, Dict

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

import triton_python_backend_utils as pb_utils
from naiad_fil.forest import Forest, load
from saved_models.execution import BatchRunner, SavedModelBackend
from saved_models.interface import check, complete_from
from saved_models.settings import read


class TritonPythonModel(SavedModelBackend):
    """One instance of a model, with a forest of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the numbers of features and classes, unless input and output are configured."""
        return complete_from(config, lambda settings: Forest(load(settings), settings).interface())

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        forest = Forest(load(settings), settings)
        check(settings, forest.interface())
        if settings.kind == "GPU":
            pb_utils.Logger.log_warn(
                f"model '{settings.name}' is computed by processors: this backend has no code for GPUs; KIND_CPU in "
                "instance_group says so"
            )
        self._runner = BatchRunner(settings, forest.run)
