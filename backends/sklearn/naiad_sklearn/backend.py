"""The class that the server calls for each model of this backend."""

from __future__ import annotations

from typing import Any, Dict, List

from saved_models.execution import BatchRunner
from saved_models.interface import complete_from
from saved_models.settings import read

from naiad_sklearn.estimator import Estimator, interface_of
from naiad_sklearn.files import load


class TritonPythonModel:
    """One instance of a model, with an estimator of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the features and what the estimator gives, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: interface_of(load(settings), settings))

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        self._runner = BatchRunner(settings, Estimator(load(settings), settings).run)

    def execute(self, requests: List[Any]) -> List[Any]:
        return self._runner.execute(requests)
