"""The class that the server calls for each model of this backend."""

from __future__ import annotations

from typing import Any, Dict, List

from saved_models.execution import BatchRunner
from saved_models.interface import complete_from
from saved_models.settings import read

from naiad_mlflow.files import load, read_metadata
from naiad_mlflow.inputs import InputReader
from naiad_mlflow.outputs import OutputWriter
from naiad_mlflow.predictor import Predictor
from naiad_mlflow.signature import interface_of, signature_of


class TritonPythonModel:
    """One instance of a model, loaded by MLflow."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the tensors of the signature, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: interface_of(read_metadata(settings), settings))

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        metadata = read_metadata(settings)
        signature = signature_of(metadata, settings)
        predictor = Predictor(
            load(metadata, settings),
            InputReader(settings, signature),
            OutputWriter(settings, signature.optional),
            signature.parameters,
        )
        self._runner = BatchRunner(
            settings, predictor.run, arguments=predictor.arguments, is_joining=not metadata.is_agent
        )

    def execute(self, requests: List[Any]) -> List[Any]:
        return self._runner.execute(requests)
